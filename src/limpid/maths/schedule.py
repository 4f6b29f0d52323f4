"""The learning rate by the mathematics, from what is left of the run. The engine's, limpid.schedule, goes by progress.

The two are written apart, so that a slip in either is found when a step is opened.
"""

from __future__ import annotations

import math
from fractions import Fraction

from limpid.config import UpdateConfig

UNIT = Fraction(1, 2**53)
"""Unit round-off of float64."""
ROUNDINGS = 16
"""No schedule takes more float64 operations than this; cos and pow are off by less than one unit more."""


def learning_rate(number: int, max_steps: int, update: UpdateConfig) -> float:
    """η of update `number` (1 is the first) of a run of `max_steps`.

    It climbs along a line from 0 before the first update to the peak at the last one of warm-up, then falls to the
    floor at the end of the run. Sources: see limpid.schedule.
    """
    return _rate(number, max_steps, update, Fraction(0))


def learning_rate_rounding(number: int, max_steps: int, update: UpdateConfig) -> float:
    """How far float64 may take it: every number on the way is at most the peak, and so steep is the curve there.

    Progress is one quotient and one difference, each off by at most u: the rate lies between those of both ends.
    """
    rates = [_rate(number, max_steps, update, shift) for shift in (-2 * UNIT, 2 * UNIT)]
    return ROUNDINGS * float(UNIT) * abs(update.learning_rate) + abs(rates[1] - rates[0])


def _rate(number: int, max_steps: int, update: UpdateConfig, shift: Fraction) -> float:
    peak, climb = update.learning_rate, update.warmup(max_steps)
    if number <= climb:
        return peak * number / climb
    floor = peak * update.min_learning_rate_ratio
    left = Fraction(max(0, max_steps - number), max(1, max_steps - climb))
    return floor + (peak - floor) * _height(left, shift, update)


def _height(left: Fraction, shift: Fraction, update: UpdateConfig) -> float:
    """From 1, the peak, to 0, the floor, when this share of the updates after warm-up is `left`."""
    near = min(max(left + shift, Fraction(0)), Fraction(1))
    match update.schedule:
        case "constant":
            return 1.0
        case "linear":
            return float(near)
        case "polynomial":
            return float(near) ** update.schedule_power
        case "cosine":
            return math.sin(math.pi / 2 * float(near)) ** 2
        case "cosine_restarts":
            of_cycle = 1 - (1 - left) * update.schedule_cycles % 1 if left else Fraction(0)
            near = min(max(of_cycle + update.schedule_cycles * shift, Fraction(0)), Fraction(1))
            return math.sin(math.pi / 2 * float(near)) ** 2
        case "warmup_stable_decay":
            return min(1.0, float(near) / update.decay_fraction) if update.decay_fraction else 1.0
