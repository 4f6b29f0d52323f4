"""What a noisy curve says for sure: Student's intervals of its level and of its rise, from means of blocks.

Neighbouring steps are alike, so that single values would make an interval too narrow: the means of long blocks are
nearly independent (batch means; Law & Kelton 1984, Operations Research 32, 1221). Needs no torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

Value = TypeVar("Value")
BLOCKS = 10
FEWEST = 2 * BLOCKS
"""Values of which anything is said."""
CHANCE = 1e-4
"""That a value lies beyond one end of its interval: looked at a hundred times in a run, one run in a hundred."""


class Interval(NamedTuple):
    """Where a number lies."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def rises(self) -> bool:
        return self.low > 0

    @property
    def falls(self) -> bool:
        return self.high < 0


NOTHING = Interval(-math.inf, math.inf)
"""Of too few values."""


def level(values: Sequence[float]) -> Interval:
    """The mean of a curve."""
    means = block_means(values)
    if not means:
        return NOTHING
    middle = sum(means) / len(means)
    spread = math.sqrt(sum((x - middle) ** 2 for x in means) / (len(means) - 1) / len(means))
    return _around(middle, spread, len(means) - 1)


def rise(values: Sequence[float]) -> Interval:
    """By how much a straight line through a curve rises from its beginning to its end."""
    means = block_means(values)
    if not means:
        return NOTHING
    count = len(means)
    times = [(i + 0.5) / count - 0.5 for i in range(count)]  # of the curve's length, about its middle
    squares, middle = sum(t * t for t in times), sum(means) / count
    slope = sum(t * x for t, x in zip(times, means, strict=True)) / squares
    left = sum((x - middle - slope * t) ** 2 for t, x in zip(times, means, strict=True))
    return _around(slope, math.sqrt(left / (count - 2) / squares), count - 2)


def together(pairs: Sequence[tuple[float, float]]) -> Interval:
    """The correlation of two numbers from step to step, by Fisher's transformation.

    Of changes between neighbouring steps, so that no trend counts; they share a step, and half of them are independent.
    """
    changes = [(b - a, d - c) for (a, c), (b, d) in itertools.pairwise(pairs)]
    count = len(changes) // 2
    squares = [sum(change[i] ** 2 for change in changes) for i in range(2)]
    if count < BLOCKS or min(squares) <= 0:
        return NOTHING
    from scipy.special import ndtri

    found = sum(a * b for a, b in changes) / math.sqrt(squares[0] * squares[1])
    middle, reach = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, found))), -float(ndtri(CHANCE)) / math.sqrt(count - 3)
    return Interval(math.tanh(middle - reach), math.tanh(middle + reach))


def grown(values: Sequence[float]) -> bool:
    """Whether a curve's last half rises, or lies above its first three values, which scatter as it does, for sure."""
    late = last(values, 0.5)
    now = level(late)
    if now is NOTHING:
        return False
    from scipy.special import ndtri

    middle = sum(late) / len(late)
    scatter = math.sqrt(sum((value - middle) ** 2 for value in late) / (len(late) - 1))
    first = sum(values[:3]) / 3 - float(ndtri(CHANCE)) * scatter / math.sqrt(3)
    return rise(late).rises or now.low > first


def block_means(values: Sequence[float], blocks: int = BLOCKS) -> list[float]:
    """Means of as many stretches of equal length; none of too few values."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2 * blocks:
        return []
    ends = [round(i * len(known) / blocks) for i in range(blocks + 1)]
    return [sum(known[a:b]) / (b - a) for a, b in itertools.pairwise(ends)]


def last(values: Sequence[Value], share: float) -> Sequence[Value]:
    """The end of a curve."""
    return values[len(values) - round(share * len(values)) :]


def _around(middle: float, error: float, freedom: int) -> Interval:
    from scipy.special import stdtrit

    reach = float(stdtrit(freedom, 1 - CHANCE)) * error
    return Interval(middle - reach, middle + reach)
