"""How likely a wrong number is the answer of a slip by chance alone, so that its name is said as a guess."""

from __future__ import annotations

import math

from limpid.primer.answer import COARSE, Typed
from limpid.primer.exercise import Answer

MOST = 0.01
"""Of random wrong numbers of an exercise, those that may be given a name that is said for certain."""


def chance(typed: Typed, made: Answer, right: Answer) -> float:
    """That a wrong answer, typed so exactly, is this one of a slip.

    Two kinds of wrong numbers, whichever hits more often: the right one times e to a standard normal number, and any
    from 0 to twice the right one. What was typed as a formula is exact, and no guess.
    """
    if made.form != right.form or len(made.values) != len(right.values):
        return 0.0
    halves = map(_half, typed.values, typed.within)
    return math.prod(
        _mass(value, half, true) for value, half, true in zip(made.values, halves, right.values, strict=True)
    )


def _half(value: float, within: float) -> float:
    """Half the way to the next number that would be typed so: of whole numbers a half."""
    return 0.5 if value.is_integer() and within == COARSE * abs(value) else within


def _mass(value: float, within: float, true: float) -> float:
    """Share of the wrong numbers for a right one that lie so near to a value."""
    if true == 0:
        return _below(value + within) - _below(value - within)
    low, high = sorted(((value - within) / true, (value + within) / true))
    if high <= 0:
        return 0.0
    alike = max(0.0, min(high, 2.0) - max(low, 0.0)) / 2
    return max(alike, _below(math.log(high)) - (_below(math.log(low)) if low > 0 else 0.0))


def _below(z: float) -> float:
    """Of the standard normal distribution."""
    return (1 + math.erf(z / math.sqrt(2))) / 2
