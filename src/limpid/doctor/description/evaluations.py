"""Passes of the watched model without gradients: in which mode, and on rows that were trained on or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpid.doctor.description.words import counted, number

if TYPE_CHECKING:
    from limpid.doctor.calls import Call
    from limpid.doctor.row_history import RowHistory

LOOKS = 64
"""Passes whose rows are looked for among those of training."""


@dataclass
class Evaluations:
    """Counts of them."""

    resting: int = 0  # passes in evaluation mode
    training: int = 0  # and in training mode
    looks: int = 0
    rows: int = 0  # of the passes that were looked at
    known: int = 0  # rows of these that training had been given before

    def passed(self, call: Call, training: bool, rows: RowHistory) -> None:
        """Add a pass."""
        self.training += training
        self.resting += not training
        if self.looks < LOOKS and rows.count and not rows.measured and call.ids is not None and call.ids.is_cpu:
            known = rows.known(call.ids)
            if known is not None:
                self.looks += 1
                self.rows += len(call.ids)
                self.known += known

    def told(self) -> Iterator[str]:
        """In sentences."""
        modes = [(self.resting, "evaluation"), (self.training, "training")]
        said = [f"{counted(passes, 'pass', 'passes')} in {mode} mode" for passes, mode in modes if passes]
        if said:
            which = f"; of {number(self.rows)} rows of these {number(self.known)} had been trained on"
            yield f"without gradients: {' and '.join(said)}{which if self.rows else ''}"
