"""Forward passes without gradients: evaluations, labels for a step, a policy that acts."""

from __future__ import annotations

from dataclasses import dataclass, field

from limpid.doctor.rule import Threshold

KEPT = 64
"""Rows of passes that are remembered."""
SEVERAL = {
    "passes": Threshold(3, "labels for the same step, or another player's input, take one or two"),
    "times": Threshold(2, "once may be a measurement of the statistics"),
    "every": Threshold(3, "passes beside every step belong to it, as those of a policy that acts"),
}
"""By what passes in training mode are evaluations: how many in a row, how often, at one in how many updates."""


@dataclass
class PlainPasses:
    """How many came in a row, in which mode, and of how many a loss was formed."""

    since: int = 0  # the last one with gradients, in training mode
    losses: int = 0  # formed of these
    rests: bool = False  # whether one in evaluation mode has come since
    bursts: list[tuple[int, int]] = field(default_factory=list)  # in training mode between two with gradients, losses
    evaluations: int = 0  # times that passes in evaluation mode came between two with gradients

    def add(self, training: bool) -> None:
        self.since += training
        self.evaluations += not training and not self.rests
        self.rests |= not training

    def judged(self) -> None:
        """A loss is formed without gradients."""
        self.losses += self.since > 0

    def trained(self) -> None:
        """A pass with gradients ends the row."""
        if self.since:
            self.bursts.append((self.since, self.losses))
            del self.bursts[:-KEPT]
        self.since, self.losses, self.rests = 0, 0, False

    @property
    def several_in_a_row(self) -> int:
        """How often so many came in training mode that they are no part of a step."""
        return sum(count >= SEVERAL["passes"] for count, _ in self.bursts)

    def are_evaluations(self, updates: int) -> bool:
        """Whether passes in training mode are evaluations, in a run of so many updates: none is made otherwise."""
        times = self.several_in_a_row
        return not self.evaluations and times >= SEVERAL["times"] and updates >= SEVERAL["every"] * times

    def judged_in_training(self, updates: int) -> bool:
        """Whether they are, and a loss is formed of each."""
        several = [losses >= count for count, losses in self.bursts if count >= SEVERAL["passes"]]
        return self.are_evaluations(updates) and all(several)
