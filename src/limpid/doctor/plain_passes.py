"""Forward passes without gradients: evaluations, labels for a step, a policy that acts."""

from __future__ import annotations

from dataclasses import dataclass, field

KEPT = 64
"""Rows of passes that are remembered."""


@dataclass
class PlainPasses:
    """How many came in a row, in which mode."""

    since: int = 0  # the last one with gradients, in training mode
    bursts: list[int] = field(default_factory=list)  # in training mode between two with gradients: how many
    in_evaluation: bool = False  # whether any was in evaluation mode

    def add(self, training: bool) -> None:
        self.since += training
        self.in_evaluation |= not training

    def trained(self) -> None:
        """A pass with gradients ends the row."""
        if self.since:
            self.bursts.append(self.since)
            del self.bursts[:-KEPT]
        self.since = 0
