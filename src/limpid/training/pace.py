"""Ending on time: how many steps a run has follows from how fast they turn out to be, until the rate begins to fall."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from limpid.config import TrainConfig

SETTLING = 3
"""First steps that do not count: they allocate, and may compile."""
LEAVING = 0.5
"""Seconds that the process takes to end."""
FILES = 3
"""Times that a checkpoint's worth is written at the end: two checkpoints and the model's folder."""


@dataclass
class Pace:
    """A clock that sets `max_steps` while the schedule allows it.

    Under warm-up–stable–decay no step before the decay depends on how many there are, so that the number may change
    until then and every step can still be taken again bit for bit.
    """

    deadline: float  # on time.perf_counter's clock
    rehearsed: float  # seconds that evaluation and sample after the last step take
    files: float = 0.0  # seconds that its checkpoints and the model's folder take
    guessed: bool = False  # whether `rehearsed` is still to be tried out
    most: int | None = None  # steps, whatever time there is
    settled: bool = False
    counted_from: tuple[int, float] | None = None

    def follow(self, config: TrainConfig, step: int) -> TrainConfig:
        """The configuration after `step` steps, with as many steps in all as will end on time."""
        now = time.perf_counter()
        if self.settled or step < SETTLING:
            return config
        if self.counted_from is None:
            self.counted_from = (step, now)
            return config
        first, began = self.counted_from
        seconds = (now - began) / (step - first)
        left = self.deadline - self.rehearsed - self.files - LEAVING - now
        steps = step + max(1, int(left / max(seconds, 1e-9)))
        if self.most is not None:
            steps = max(step + 1, min(self.most, steps))
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, max_steps=steps))
        self.settled = decays_next(config, step)
        return config


def decays_next(config: TrainConfig, step: int) -> bool:
    """Whether the learning rate begins to fall within the next step."""
    warmup, last = config.update.warmup_steps, config.run.max_steps
    return (step + 1 - warmup) / max(1, last - warmup) > 1 - config.update.decay_fraction
