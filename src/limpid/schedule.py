"""The learning rate as a function of the step: pure arithmetic, so that engine, mathematics and planner share it."""

from __future__ import annotations

import math

from limpid.config import UpdateConfig


def learning_rate(step: int, max_steps: int, update: UpdateConfig) -> float:
    """Learning rate of update `step` (1 is the first) in a run of `max_steps`.

    Warm-up is linear: step s of W has s / W of the peak, so no update is spent at rate 0.
    Sources: cosine and restarts, Loshchilov & Hutter 2017, eq. 5, arXiv:1608.03983;
    warm-up–stable–decay, Hu et al. 2024, eq. 1, arXiv:2404.06395.
    """
    peak, floor = update.learning_rate, update.learning_rate * update.min_learning_rate_ratio
    if step <= update.warmup_steps:
        return peak * step / update.warmup_steps
    return floor + (peak - floor) * _shape(step - update.warmup_steps, max(1, max_steps - update.warmup_steps), update)


def _shape(step: int, steps: int, update: UpdateConfig) -> float:
    """What is left of the way from peak (1) to floor (0), `step` of `steps` after warm-up."""
    progress = min(1.0, step / steps)
    match update.schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - progress
        case "polynomial":
            return float((1.0 - progress) ** update.schedule_power)
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        case "cosine_restarts":
            cycle = 1.0 if progress == 1.0 else progress * update.schedule_cycles % 1.0
            return 0.5 * (1.0 + math.cos(math.pi * cycle))
        case "warmup_stable_decay":
            if progress <= 1.0 - update.decay_fraction:
                return 1.0
            return (1.0 - progress) / update.decay_fraction
