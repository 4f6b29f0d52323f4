"""How a gradient fares on its way back through the blocks: with and without residual additions, with and without norms.

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

from limpid.inspect.lens import read_out
from limpid.inspect.watch import blocks, in_format
from limpid.model import Transformer, initialise
from limpid.model.embedding import Angles
from limpid.model.transformer import Block
from limpid.objectives.losses import log_probabilities, next_token_loss

RESCALED = (0.5, 1.0, 2.0)
"""Standard deviations of freshly drawn weights, as multiples of the configuration's."""


@dataclass(frozen=True)
class Path:
    """A stack of blocks, and what it does to a vector that goes back through it."""

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
        pace = math.log2(self.later)
        if abs(pace) <= 0.5:
            return "is carried"
        if abs(pace) > 1:
            return f"{'vanishes' if pace < 0 else 'explodes'}: ×{self.later:.2g} per block"
        return f"{'vanishes: halves' if pace < 0 else 'explodes: doubles'} every {1 / abs(pace):.2g} blocks"


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
    for norm, sublayer in (
        (block.norm1, lambda y: block.attention(y, angles)),
        (block.norm2, lambda y: block.mlp(y)),
    ):
        written = sublayer(norm(x) if norms and block.pre else x)
        x = x + written if residual else written
        if norms and not block.pre:
            x = norm(x)
    return x


def back(name: str, stream: list[Tensor], end: Tensor) -> Path:
    """Gains of the blocks for the vector that `end`, a number made from the last of `stream`, starts with."""
    gradients = torch.autograd.grad(end, stream)
    norms = [float(gradient.norm()) for gradient in gradients]
    return Path(name, tuple(before / after if after > 0 else 0.0 for before, after in pairwise(norms)))


def random_path(
    name: str, model: Transformer, tokens: Int[Tensor, "batch position"], residual: bool, norms: bool, seed: int = 0
) -> Path:
    """Gains for a random vector at the last block's output."""
    stream = forward(model, tokens, residual, norms)
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(stream[-1].shape, generator=generator, dtype=stream[-1].dtype)
    return back(name, stream, (stream[-1] * vector).sum())


def gradient_path(
    model: Transformer, tokens: Int[Tensor, "batch position"], targets: Int[Tensor, "batch position"]
) -> Path:
    """Gains for the gradient of the loss, through the model as it is."""
    stream = forward(model, tokens)
    surprise = log_probabilities(read_out(model, stream[-1]))
    return back("the loss's own gradient", stream, next_token_loss(surprise, targets, targets.numel()))


def paths(model: Transformer, tokens: Int[Tensor, "batch position"]) -> tuple[Path, ...]:
    """The two cures inside a block, each with and without the other, for one random vector."""
    return (
        random_path("as it is: residuals and norms", model, tokens, residual=True, norms=True),
        random_path("residuals, no norms", model, tokens, residual=True, norms=False),
        random_path("norms, no residuals", model, tokens, residual=False, norms=True),
        random_path("a plain stack: neither", model, tokens, residual=False, norms=False),
    )


def redrawn(model: Transformer, tokens: Int[Tensor, "batch position"], seed: int) -> tuple[Path, ...]:
    """The same model with weights drawn afresh, wider or narrower: as it is, and as a plain stack."""
    found = []
    for factor in RESCALED:
        config = dataclasses.replace(model.config, init_std=factor * model.config.init_std)
        fresh = in_format(initialise(Transformer(config), seed), torch.float64)
        for residual, kind in ((True, "as it is"), (False, "plain stack")):
            name = f"{kind}, initial std {config.init_std:.3g} ({factor:g}×)"
            found.append(random_path(name, fresh, tokens, residual=residual, norms=residual))
    return tuple(found)
