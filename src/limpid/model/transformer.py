"""The transformer: a residual stream that each block reads, norms, and writes back to."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from limpid.config import ModelConfig
from limpid.model.attention import Attention
from limpid.model.cache import Cache
from limpid.model.dropout import Dropout
from limpid.model.embedding import Angles, Embed, Rotation
from limpid.model.linear import Linear
from limpid.model.mlp import Mlp
from limpid.model.norm import norm
from limpid.model.observe import report
from limpid.quantities import parameters


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); or, post placement, norm(x + …) for both."""

    def __init__(self, config: ModelConfig, block: int) -> None:
        super().__init__()
        self.name = f"blocks.{block}"
        self.pre = config.norm_placement == "pre"
        self.norm1 = norm(config)
        self.attention = Attention(config, block)
        self.norm2 = norm(config)
        self.mlp = Mlp(config, block)

    def forward(self, x: Tensor, compute: torch.dtype, angles: Angles | None, cache: Cache | None) -> Tensor:
        if self.pre:
            normed = report(f"{self.name}.norm1", self.norm1(x).to(compute))
            x = report(f"{self.name}.residual1", x + self.attention(normed, angles, cache))
            normed = report(f"{self.name}.norm2", self.norm2(x).to(compute))
            return report(f"{self.name}.residual2", x + self.mlp(normed))
        x = report(f"{self.name}.residual1", x + self.attention(x.to(compute), angles, cache))
        x = report(f"{self.name}.norm1", self.norm1(x))
        x = report(f"{self.name}.residual2", x + self.mlp(x.to(compute)))
        return report(f"{self.name}.norm2", self.norm2(x))


class Transformer(nn.Module):
    """Fast twin of maths.transformer: tokens to logits.

    The residual stream has the precision of the parameters; matrix products run in `compute`.
    """

    def __init__(self, config: ModelConfig, compute: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.compute = config, compute
        self.embed = Embed(config)
        self.embed_dropout = Dropout("embed.dropped", config.dropout)
        self.rotation = Rotation(config) if config.positions == "rotary" else None
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.num_layers))
        self.final_norm = norm(config) if config.norm_placement == "pre" else None
        self.logits = None if config.tied else Linear(config.d_model, config.vocab_size, bias=False)

    def forward(
        self, tokens: Int[Tensor, "batch position"], cache: Cache | None = None, last_only: bool = False
    ) -> Float[Tensor, "batch position vocab"]:
        """Logits of every position, or of the last one only; with a cache, `tokens` continue what it holds."""
        count = tokens.shape[1]
        positions = torch.arange(count, device=tokens.device) if cache is None else cache.positions(count)
        x = self.embed_dropout(self.embed(tokens, positions))
        angles = None if self.rotation is None else self.rotation.at(positions, x.dtype)
        for block in self.blocks:
            x = block(x, self.compute, angles, cache)
        if cache is not None:
            cache.advance(count)
        if last_only:
            x = x[:, -1:]
        if self.final_norm is not None:
            x = report("final_norm", self.final_norm(x).to(self.compute))
        x = x.to(self.compute)
        if self.logits is None:
            return report("logits", F.linear(x, self.embed.tokens.weight.to(x.dtype)))
        return report("logits", self.logits(x))


def initialise(model: Transformer, seed: int) -> Transformer:
    """Draw every parameter as the vocabulary says it starts, as a function of the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    learned = dict(model.named_parameters())
    with torch.no_grad():
        for parameter in parameters(model.config):
            tensor = learned[parameter.name]
            if parameter.init == "normal":
                tensor.copy_(torch.randn(parameter.shape, generator=generator) * parameter.std)
            else:
                tensor.fill_(1.0 if parameter.init == "ones" else 0.0)
    return model
