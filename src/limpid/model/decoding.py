"""Decoding: one more position of every row, in as few calls as the arithmetic allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from limpid.config import ModelConfig
from limpid.model.attention import Attention
from limpid.model.cache import Cache
from limpid.model.embedding import Rotation
from limpid.model.linear import Linear
from limpid.model.mlp import ACTIVATIONS, Mlp
from limpid.model.norm import RMSNorm
from limpid.model.transformer import Block, Transformer

Norm = Callable[[Tensor], Tensor]
Rows = Float[Tensor, "batch d_model"]


class Decoder:
    """A transformer whose weights no longer change: several positions go through it, a single one takes a short cut.

    At one position a call costs more than its arithmetic. So matrices that meet the same vectors are joined,
    cosines and sines are made once, and nothing is reported. Same values as `Transformer` but for rounding.
    """

    def __init__(self, model: Transformer) -> None:
        self.model, self.config, self.compute = model.eval(), model.config, model.compute
        self.blocks = [Stage(block, model.compute) for block in model.blocks if isinstance(block, Block)]
        self.final_norm = None if model.final_norm is None else _norm(model.final_norm)
        table = model.embed.tokens.weight if model.logits is None else model.logits.weight
        self.head = table.detach().to(model.compute).t()
        if model.logits is not None:
            self.head = self.head.contiguous()
        self.turns = None if model.rotation is None else Turns(model.rotation, model.config, table.dtype)

    @classmethod
    def of(cls, model: Transformer | Decoder) -> Decoder:
        """`model` itself where it is one already."""
        return model if isinstance(model, Decoder) else cls(model)

    def __call__(
        self, tokens: Int[Tensor, "batch position"], cache: Cache, last_only: bool = True
    ) -> Float[Tensor, "batch position vocab"]:
        """Logits of `tokens`, which continue what the cache holds."""
        if tokens.shape[1] > 1:
            logits: Tensor = self.model(tokens, cache, last_only)
            return logits
        return self._next(tokens[:, 0], cache)[:, None]

    def _next(self, tokens: Int[Tensor, " batch"], cache: Cache) -> Float[Tensor, "batch vocab"]:
        positions = cache.positions(1)
        x = self.model.embed(tokens[:, None], positions)[:, 0]
        turn = None if self.turns is None else self.turns.at(positions, self.compute)
        visible: dict[int | None, Bool[Tensor, "..."] | None] = {}
        for stage in self.blocks:
            if stage.window not in visible:
                visible[stage.window] = cache.visible(1, stage.window)
            x = stage(x, turn, cache, visible[stage.window])
        cache.advance(1)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return x.to(self.compute) @ self.head


class Turns:
    """Every position's cosines and sines, laid out to meet all features of a head at once."""

    def __init__(self, rotation: Rotation, config: ModelConfig, dtype: torch.dtype) -> None:
        cos, sin = (y[:, 0] for y in rotation.at(torch.arange(config.context_length), dtype))
        self.half = config.rotary_layout == "half"
        if self.half:
            self.cos, self.sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        else:
            self.cos = cos.repeat_interleave(2, -1)
            self.sin = torch.stack((-sin, sin), -1).flatten(-2)

    def at(self, positions: Int[Tensor, "*rows position"], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """What turns the heads of one position of every row, (batch, head, d_head)."""
        place = positions[..., -1]
        cos, sin = self.cos[place].to(dtype), self.sin[place].to(dtype)
        if positions.ndim == 2:  # each row stands at a position of its own
            cos, sin = cos[:, None], sin[:, None]
        if self.half:
            half = self.cos.shape[-1] // 2
            return lambda x: torch.addcmul(x * cos, x.roll(half, -1), sin)
        return lambda x: torch.addcmul(x * cos, x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2), sin)


class Stage:
    """One block at one position: twin of `Block`."""

    def __init__(self, block: Block, compute: torch.dtype) -> None:
        attention, self.pre, self.compute = block.attention, block.pre, compute
        assert isinstance(attention, Attention)
        assert isinstance(block.mlp, Mlp)
        config = attention.config
        self.number, self.window, self.heads = attention.block, attention.window, config.num_heads
        self.d_head, self.shared = config.d_head, config.num_kv_heads != config.num_heads
        self.turned = config.num_heads + config.num_kv_heads  # heads of queries and keys, which come first
        self.norm1, self.norm2 = _norm(block.norm1), _norm(block.norm2)
        self.query_key_norm = _query_key_norm(attention)
        self.attend = Joined((attention.query, attention.key, attention.value), compute)
        self.mixed = Joined((attention.output,), compute)
        mlp = block.mlp
        self.widen = Joined((mlp.up,) if mlp.gate is None else (mlp.gate, mlp.up), compute)
        self.narrow = Joined((mlp.output,), compute)
        self.activation, self.d_ff, self.gated = ACTIVATIONS[config.activation], config.d_ff, mlp.gate is not None

    def __call__(
        self, x: Rows, turn: Callable[[Tensor], Tensor] | None, cache: Cache, visible: Bool[Tensor, "..."] | None
    ) -> Rows:
        if self.pre:
            x = self.mixed.onto(x, self.mix(self.norm1(x), turn, cache, visible))
            return self.narrow.onto(x, self.hidden(self.norm2(x)))
        x = self.norm1(self.mixed.onto(x, self.mix(x, turn, cache, visible)))
        return self.norm2(self.narrow.onto(x, self.hidden(x)))

    def mix(
        self, x: Rows, turn: Callable[[Tensor], Tensor] | None, cache: Cache, visible: Bool[Tensor, "..."] | None
    ) -> Rows:
        """What attention gathers, before its output matrix."""
        heads = self.attend(x.to(self.compute)).view(x.shape[0], -1, self.d_head)
        turned = heads[:, : self.turned]
        if self.query_key_norm is not None:
            turned = self.query_key_norm(turned)
        if turn is not None:
            turned = turn(turned)
        query, key = turned[:, : self.heads, None], turned[:, self.heads :]
        keys, values = cache.append(self.number, key, heads[:, self.turned :])
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible, enable_gqa=self.shared)
        return mixed.view(x.shape[0], -1)

    def hidden(self, x: Rows) -> Float[Tensor, "batch d_ff"]:
        """The MLP's widened, bent features."""
        y = self.widen(x.to(self.compute))
        if not self.gated:
            return self.activation(y)
        return self.activation(y[:, : self.d_ff]).mul_(y[:, self.d_ff :])


class Joined:
    """Several linear maps of the same vectors as one, in the layout that one product reads fastest."""

    def __init__(self, linears: Sequence[Linear], dtype: torch.dtype) -> None:
        self.weight = torch.cat([linear.weight.detach() for linear in linears]).to(dtype).t().contiguous()
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self.bias = torch.cat(biases).to(dtype) if biases else None

    def __call__(self, x: Float[Tensor, "batch d_in"]) -> Float[Tensor, "batch d_out"]:
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)

    def onto(self, residual: Rows, x: Float[Tensor, "batch d_in"]) -> Rows:
        """residual + x W + b."""
        if self.bias is None and residual.dtype == x.dtype:
            return torch.addmm(residual, x, self.weight)
        return residual + self(x)


def _norm(module: torch.nn.Module) -> Norm:
    return _rms(module.weight.detach(), module.eps) if isinstance(module, RMSNorm) else module


def _query_key_norm(attention: Attention) -> Norm | None:
    """Of all heads of queries and keys at once."""
    query, key = attention.query_norm, attention.key_norm
    if query is None or key is None:
        return None
    config = attention.config
    weights = [query.weight.detach()] * config.num_heads + [key.weight.detach()] * config.num_kv_heads
    return _rms(torch.stack(weights), query.eps)


def _rms(weight: Tensor, eps: float) -> Norm:
    """x / rms(x) ⊙ weight in four calls."""
    smallest, share = torch.full((1,), eps, dtype=weight.dtype), 1 / weight.shape[-1]

    def norm(x: Tensor) -> Tensor:
        wide = x.to(weight.dtype)
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = torch.addcmul(smallest, length, length, value=share).rsqrt_()
        return (wide * inverse).mul_(weight).to(x.dtype)

    return norm


