"""What a user's own code is told while a run trains; and the best evaluation so far."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limpid.metrics import Sample
    from limpid.run import Run
    from limpid.training.step import Outcome
    from limpid.training.validation import Evaluation


class Callback:
    """Override what you want to hear of. Called in the main process, after the event; it changes nothing by itself.

    An error in it ends training, with everything saved where one process trains.
    """

    def on_start(self, run: Run) -> None:
        """Before the first step: the folder is there."""

    def on_step(self, run: Run, outcome: Outcome) -> None:
        """After every step: its number, loss, gradient norm, learning rate, and whether parameters moved."""

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        """After every evaluation: its step, loss (nats per token) and bits_per_byte; `sets` has each by its name."""

    def on_sample(self, run: Run, sample: Sample) -> None:
        """After every sample: its step, prompt and text."""

    def on_checkpoint(self, run: Run, step: int) -> None:
        """Once a checkpoint is written, which `RUN@STEP` names: while the next steps are taken."""


@dataclass
class Best:
    """The lowest validation loss so far."""

    loss: float = math.inf
    step: int | None = None
    worse_since: int = 0
    """Evaluations after it."""

    @staticmethod
    def of(evaluations: Iterable[dict[str, Any]]) -> Best:
        """Of lines of metrics.jsonl."""
        best = Best()
        for line in evaluations:
            best.add(line["step"], float(line["eval_loss"]))
        return best

    def add(self, step: int, loss: float) -> None:
        """Take an evaluation into account."""
        if loss < self.loss:
            self.loss, self.step, self.worse_since = loss, step, 0
        else:
            self.worse_since += 1
