"""A run that ends at a given time: its size chosen for it, its steps counted by its pace."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from rich.console import Console

from limpid.config import TrainConfig
from limpid.errors import ConfigError
from limpid.plan import parameter_count
from limpid.progress import Report
from limpid.training.budget import RESERVE, tokens_per_step, within
from limpid.training.pace import Pace


@dataclass(frozen=True)
class Until:
    """When the run is to end, on time.perf_counter's clock, and whether its size was given."""

    deadline: float
    sized: bool

    def arranged(
        self, config: TrainConfig, unique_tokens: int, console: Console, report: Report | None
    ) -> tuple[TrainConfig, Pace]:
        """The configuration for the time that is left, and the clock that keeps to it.

        Raises  ConfigError when no time is left
        """
        left = self.deadline - RESERVE - time.perf_counter()
        if left <= 0:
            raise ConfigError(
                "no time is left to train: reading the text and finishing take the minutes given; give more of them"
            )
        if report is not None:
            report("measuring steps", 0, 1)
        choice = within(config, left, unique_tokens, sized=self.sized)
        config = choice.config
        steps, model = config.run.max_steps, config.model
        console.print(
            f"chosen for the time: {parameter_count(model):,} parameters and about "
            f"{steps * tokens_per_step(config):,} tokens, {steps:,} steps of {1e3 * choice.seconds_per_step:.0f} ms",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
        left = max(0.0, self.deadline - RESERVE - time.perf_counter())  # measuring took some
        steps = max(1, int(left / choice.seconds_per_step))
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, max_steps=steps))
        return config, Pace(self.deadline, rehearsed=RESERVE, guessed=True)
