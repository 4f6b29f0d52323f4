"""The learning rate as a function of the step, as the engine takes it; maths/schedule.py derives it a second time."""

from __future__ import annotations

import math
from fractions import Fraction

from limpid.config import UpdateConfig
from limpid.errors import DomainError

TEXT_RATE = 1e-4
"""Learning rate of the one update that a model takes on a text, as of fine-tuning."""


def learning_rate(step: int, max_steps: int, update: UpdateConfig) -> float:
    """Learning rate of update `step` (1 is the first) in a run of `max_steps`.

    Warm-up is linear: step s of W has s / W of the peak, so no update is spent at rate 0.
    Sources: cosine and restarts, Loshchilov & Hutter 2017, eq. 5, arXiv:1608.03983;
    warm-up–stable–decay, Hu et al. 2024, eq. 1, arXiv:2404.06395.
    """
    peak, floor = update.learning_rate, update.learning_rate * update.min_learning_rate_ratio
    climb = update.warmup(max_steps)
    if step <= climb:
        return peak * warmup(step, climb)
    return floor + (peak - floor) * _shape(step - climb, max(1, max_steps - climb), update)


def _shape(step: int, steps: int, update: UpdateConfig) -> float:
    """What is left of the way from peak (1) to floor (0), `step` of `steps` after warm-up."""
    progress = min(1.0, step / steps)
    match update.schedule:
        case "constant":
            return constant_schedule(progress)
        case "linear":
            return linear_schedule(progress)
        case "polynomial":
            return polynomial_schedule(progress, update.schedule_power)
        case "cosine":
            return cosine_schedule(progress)
        case "cosine_restarts":
            return cosine_restarts(Fraction(min(step, steps), steps), update.schedule_cycles)
        case "warmup_stable_decay":
            return warmup_stable_decay(progress, update.decay_fraction)


def warmup(step: int, steps: int) -> float:
    """Share of the peak at `step` of a warm-up of `steps`; 1 from its end on."""
    return min(1.0, step / steps) if steps else 1.0


def constant_schedule(progress: float) -> float:
    """The peak throughout, whatever the progress (0 to 1)."""
    _require_progress(progress)
    return 1.0


def linear_schedule(progress: float) -> float:
    """A straight line from 1 at progress 0 to 0 at progress 1."""
    _require_progress(progress)
    return 1.0 - progress


def polynomial_schedule(progress: float, power: float = 2.0) -> float:
    """A power of what is left, from 1 at progress 0 to 0 at progress 1."""
    _require_progress(progress)
    return float((1.0 - progress) ** power)


def cosine_schedule(progress: float, waves: float = 0.5) -> float:
    """A cosine from 1 at progress 0; half a wave ends at 0, a whole one is back at 1."""
    _require_progress(progress)
    return 0.5 * (1.0 + math.cos(2 * math.pi * waves * progress))


def cosine_restarts(progress: float | Fraction, cycles: int = 1) -> float:
    """Half cosines from 1 to 0, one after another; the last one ends at 0.

    A fraction keeps the restart at its step: in float64, 15/22 · 22 is just below 15.
    """
    _require_progress(progress)
    return cosine_schedule(1.0 if progress == 1 else float(progress * cycles % 1))


def warmup_stable_decay(progress: float, decay_fraction: float = 0.2) -> float:
    """1 until the last `decay_fraction` of the run, then a straight line to 0."""
    _require_progress(progress)
    return 1.0 if progress <= 1.0 - decay_fraction else (1.0 - progress) / decay_fraction


def _require_progress(progress: float | Fraction) -> None:
    if not 0 <= progress <= 1:
        raise DomainError(f"progress is {progress}: it lies between 0, the end of warm-up, and 1, the end of the run")
