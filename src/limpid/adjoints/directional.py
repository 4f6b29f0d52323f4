"""Derivatives along random directions by central differences, with what they may be off by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf, isfinite

import torch
from torch import Tensor

from limpid.adjoints.adjoint import Along

DIRECTIONS = 3
WRITTEN = 2.0**-20
"""Constants of a formula are written with as few as seven digits."""
FINE = 2.0**-30
"""A step that changes nothing in a forward pass that is constant between steps."""
LUCK = 4.0
"""Times a sum of differences, each with a random sign, that their sum in another draw stays below."""

Results = Sequence[Tensor | None]
Forward = Callable[[Tensor], Results]


def scale_of(x: Tensor) -> float:
    """The size of a typical entry that is not 0; 1 where all are."""
    size = x.detach().double().abs()
    size = size[(size > 0) & size.isfinite()]
    return float(size.median()) if size.numel() else 1.0


def signs_of(x: Tensor, generator: torch.Generator, *, symmetric: bool = False) -> Tensor:
    """A random direction: ± the size of a typical entry, 0 where an entry is not finite; a symmetric one if asked."""
    signs = torch.randint(0, 2, x.shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1).to(x.device)
    signs = (signs + signs.mT) / 2 if symmetric and is_symmetric(x) else signs
    return signs * scale_of(x) * x.detach().isfinite()


def finely_moved(x: Tensor) -> Tensor:
    """By as little as its format tells, each entry."""
    unit = max(FINE, 4 * torch.finfo(x.dtype).eps)
    return (x.detach().double() * (1 + unit) + unit * scale_of(x)).to(x.dtype)


def moved_at(x: Tensor, entry: int) -> tuple[Tensor, Tensor]:
    """One entry alone, moved finely, and to the other side of 0."""
    fine, coarse = (x.detach().clone(memory_format=torch.contiguous_format) for _ in range(2))
    fine.view(-1)[entry] = finely_moved(x).reshape(-1)[entry]
    value = coarse.view(-1)[entry].double()
    coarse.view(-1)[entry] = (-value - torch.sign(value) * scale_of(x)).to(x.dtype)
    return fine, coarse


def is_symmetric(x: Tensor) -> bool:
    """Whether it is matrices that are symmetric up to rounding, and have entries beside their diagonals."""
    if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
        return False
    wide = x.detach().double()
    near = float((wide - wide.mT).abs().max()) <= 8 * torch.finfo(x.dtype).eps * float(wide.abs().max())
    return near and bool(torch.count_nonzero(wide.triu(1)))


def steps(unit: float) -> Iterator[float]:
    """Lengths of steps: where truncation and rounding to a unit are alike, then shorter and longer ones."""
    first = unit ** (1 / 3)
    yield from (first, first / 16, first / 64, *(one for one in (2.0**-8, 2.0**-5, 2.0**-3) if one > 2 * first))


class Difference:
    """What a forward pass gives along one direction, twice as far too."""

    def __init__(self, forward: Forward, x: Tensor, direction: Tensor, length: float, middle: Results) -> None:
        wide = x.detach().double()
        above, below = ((wide + side * length * direction).to(x.dtype) for side in (1, -1))
        further = [(wide + side * 2 * length * direction).to(x.dtype) for side in (1, -1)]
        self.moved = _off(above, below) / (2 * length)  # v, as it came to be in this format
        self.middle, self.length = middle, length
        self.near = [_each(one) for one in (forward(above), forward(below))]
        self.far = [_each(one) for one in (forward(further[0]), forward(further[1]))]

    def weighed(self, gradients: Results) -> tuple[float, float]:
        """⟨ȳ, J v⟩, and what it may be off by: truncation, rounding, and places where the slope jumps."""
        expected = bound = 0.0
        for place, gradient in enumerate(gradients):
            above, below, middle = self.near[0][place], self.near[1][place], _double(self.middle[place])
            if gradient is None or above is None or below is None or middle is None:
                continue
            weight, length = gradient.detach().double(), self.length
            slope = _off(above, below) / (2 * length)
            twice = _off(self.far[0][place], self.far[1][place]) / (4 * length)
            bend = (_off(above, middle) - _off(middle, below)) / length
            bend_twice = (_off(self.far[0][place], middle) - _off(middle, self.far[1][place])) / (2 * length)
            expected += float((weight * slope).sum())
            apart, jump = weight * (twice - slope), weight * (2 * bend - bend_twice)
            unit = torch.finfo(self._dtype(place)).eps / 2
            bound += max(abs(float(apart.sum())), LUCK * float(apart.norm())) + LUCK * float(jump.norm())
            bound += LUCK * unit * float((weight * above).nan_to_num(0, 0, 0).norm()) / length
        return expected, bound

    def _dtype(self, place: int) -> torch.dtype:
        one = self.middle[place]
        return torch.float64 if one is None else one.dtype


def _each(results: Results) -> list[Tensor | None]:
    return [_double(one) for one in results]


def _double(one: Tensor | None) -> Tensor | None:
    return None if one is None else one.detach().double()


def _off(one: Tensor | None, other: Tensor | None) -> Tensor:
    """Their difference, 0 where both are the same infinity."""
    assert one is not None
    assert other is not None
    one, other = one.double(), other.double()
    return torch.where(one == other, 0.0, one - other)


def along(
    forward: Forward, x: Tensor, middle: Results, gradients: Results, given: Tensor, scattered: Sequence[Tensor],
    place: int, unit: float, symmetric: bool,
) -> list[Along]:  # fmt: skip
    """Directions in one input, each at the length of step that tells most.

    given      x̄ at x
    scattered  what rounding may have made of it, where that is more than nothing
    """
    generator = torch.Generator().manual_seed(place)
    return [
        _one(forward, x, direction, middle, gradients, given.double(), scattered, place, unit)
        for direction in (signs_of(x, generator, symmetric=symmetric) for _ in range(DIRECTIONS))
    ]


def _one(
    forward: Forward, x: Tensor, direction: Tensor, middle: Results, gradients: Results, given: Tensor,
    scattered: Sequence[Tensor], place: int, unit: float,
) -> Along:  # fmt: skip
    best = None
    for length in steps(unit):
        found = Difference(forward, x, direction, length, middle)
        expected, bound = found.weighed(gradients)
        got = float((given * found.moved).sum())
        size = max(float((given * found.moved).nan_to_num(0, 0, 0).norm()), abs(expected))
        scatter = max((abs(float(((one - given) * found.moved).sum())) for one in scattered), default=0.0)
        bound += WRITTEN * size + LUCK * LUCK * scatter
        one = Along(place, got, expected, bound if isfinite(bound) and isfinite(expected) else inf, size)
        if best is None or one.bound / (one.size or 1) < best.bound / (best.size or 1):
            best = one
        if best.bound <= 2.0**-12 * best.size:
            break
    assert best is not None
    return best
