"""How a gradient's length changes from block to block: with and without residual additions and norms.

The gain of a block is |v J| / |v| for the row vector v that reaches its output: below 1 it shrinks, above 1 it grows
(Pascanu, Mikolov & Bengio 2013, section 2, arXiv:1211.5063; residuals, He et al. 2016, arXiv:1603.05027).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from limpid.inspection.forward_pass import blocks, cast_model
from limpid.inspection.logit_attribution import read_out
from limpid.model import Transformer, initialise
from limpid.model.embedding import Angles
from limpid.model.transformer import Block
from limpid.objectives.losses import log_probabilities, next_token_loss

RESCALED = (0.5, 1.0, 2.0)
"""Standard deviations of freshly drawn weights, as multiples of the configuration's."""


@dataclass(frozen=True)
class GradientFlow:
    """A stack of blocks, and what it does to a vector that goes flow_of through it."""

    name: str
    gains: tuple[float, ...]  # of block 0, 1, …

    @property
    def mean(self) -> float:
        """Geometric mean gain of all blocks."""
        return geometric_mean(self.gains)

    @property
    def later(self) -> float:
        """Geometric mean gain of the blocks after the first, whose norm meets the small embeddings alone."""
        return geometric_mean(self.gains[1:] or self.gains)

    @property
    def verdict(self) -> str:
        """Whether a gradient vanishes or explodes beyond block 0: halved or doubled at least once in two blocks."""
        if self.later == 0:
            return "vanishes at once"
        rate = math.log2(self.later)
        if abs(rate) <= 0.5:
            return "is carried"
        if abs(rate) > 1:
            return "vanishes" if rate < 0 else "explodes"
        return f"{'halves' if rate < 0 else 'doubles'} every {1 / abs(rate):.2g} blocks"


def geometric_mean(gains: Sequence[float]) -> float:
    """exp of the mean logarithm; 0 when a gain is 0."""
    if not gains or min(gains) <= 0:
        return 0.0
    return math.exp(sum(map(math.log, gains)) / len(gains))


def forward(
    model: Transformer,
    tokens: Int[Tensor, "batch position"],
    residual: bool = True,
    norms: bool = True,
) -> list[Float[Tensor, "batch position d_model"]]:
    """The input of every block, then the output of the last one; each block's sublayers alone without `residual`."""
    positions = torch.arange(tokens.shape[1])
    x = model.embed(tokens, positions).detach().requires_grad_()
    angles = None if model.rotation is None else model.rotation.at(positions, x.dtype)
    stream = [x]
    for block in blocks(model):
        stream.append(_through(block, stream[-1], angles, residual, norms))
    return stream


def _through(block: Block, x: Tensor, angles: Angles | None, residual: bool, norms: bool) -> Tensor:
    """Block.forward with its additions or its norms left out."""
    pre = block.placement == "pre"
    for norm, sublayer, added, normed in (
        (block.norm1, lambda y: block.attention(y, angles), block.residual1, block.placement == "post"),
        (block.norm2, lambda y: block.mlp(y), True, not pre),
    ):
        written = sublayer(norm(x) if norms and pre else x)
        x = x + written if residual and added else written
        if norms and normed:
            x = norm(x)
    return x


def flow_of(name: str, stream: list[Tensor], end: Tensor) -> GradientFlow:
    """Gains of the blocks for the vector that `end`, a number made from the last of `stream`, starts with."""
    gradients = torch.autograd.grad(end, stream)
    norms = [float(gradient.norm()) for gradient in gradients]
    return GradientFlow(name, tuple(before / after if after > 0 else 0.0 for before, after in pairwise(norms)))


def random_flow(
    name: str, model: Transformer, tokens: Int[Tensor, "batch position"], residual: bool, norms: bool, seed: int = 0
) -> GradientFlow:
    """Gains for a random vector at the last block's output."""
    stream = forward(model, tokens, residual, norms)
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(stream[-1].shape, generator=generator, dtype=stream[-1].dtype)
    return flow_of(name, stream, (stream[-1] * vector).sum())


def loss_flow(
    model: Transformer, tokens: Int[Tensor, "batch position"], targets: Int[Tensor, "batch position"]
) -> GradientFlow:
    """Gains for the gradient of the loss, through the model as it is."""
    stream = forward(model, tokens)
    log_p = log_probabilities(read_out(model, stream[-1]))
    return flow_of("the loss's own gradient", stream, next_token_loss(log_p, targets, targets.numel()))


def flow_variants(model: Transformer, tokens: Int[Tensor, "batch position"]) -> tuple[GradientFlow, ...]:
    """The two cures inside a block, each with and without the other, for one random vector."""
    return (
        random_flow("as it is: residuals and norms", model, tokens, residual=True, norms=True),
        random_flow("residuals, no norms", model, tokens, residual=True, norms=False),
        random_flow("norms, no residuals", model, tokens, residual=False, norms=True),
        random_flow("a plain stack: neither", model, tokens, residual=False, norms=False),
    )


def fresh_flows(model: Transformer, tokens: Int[Tensor, "batch position"], seed: int) -> tuple[GradientFlow, ...]:
    """The same model with weights drawn afresh, wider or narrower: as it is, and as a plain stack."""
    flows = []
    for factor in RESCALED:
        config = dataclasses.replace(model.config, init_std=factor * model.config.init_std)
        fresh = cast_model(initialise(Transformer(config), seed), torch.float64)
        for residual, kind in ((True, "as it is"), (False, "plain stack")):
            name = f"{kind}, initial std {config.init_std:.3g} ({factor:g}×)"
            flows.append(random_flow(name, fresh, tokens, residual=residual, norms=residual))
    return tuple(flows)
