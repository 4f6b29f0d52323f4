"""Passes of the watched model without gradients: in which mode, and on rows that were trained on or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.description.words import counted, number

if TYPE_CHECKING:
    from limpid.doctor.calls import Call
    from limpid.doctor.row_history import RowHistory
    from limpid.doctor.step_record import StepRecord

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
    as_given: bool = False  # whether the model is given rows of measured numbers as the batch has them

    def passed(self, call: Call, training: bool, rows: RowHistory) -> None:
        """Add a pass."""
        self.training += training
        self.resting += not training
        given = _measured(call) if rows.measured else call.ids
        if self.looks < LOOKS and rows.count and given is not None and given.is_cpu:
            known = rows.known(given)
            if known is not None and (self.as_given or not rows.measured):
                self.looks += 1
                self.rows += len(given)
                self.known += known

    def trained(self, record: StepRecord) -> None:
        """Whether a model is given rows of measured numbers as the batch has them."""
        rows = record.micros[0].measured if record.micros else None
        given = _measured(record.calls[0]) if record.calls else None
        if record.sampled and rows is not None and given is not None:
            self.as_given = rows.shape == given.shape and bool(torch.equal(rows[0].to(given), given[0]))

    def told(self) -> Iterator[str]:
        """In sentences."""
        modes = [(self.resting, "evaluation"), (self.training, "training")]
        said = [f"{counted(passes, 'pass', 'passes')} in {mode} mode" for passes, mode in modes if passes]
        if said:
            which = f"; of {number(self.rows)} rows of these {number(self.known)} had been trained on"
            tells = self.rows and (self.known or not self.as_given)  # of pictures that were changed none is known
            yield f"without gradients: {' and '.join(said)}{which if tells else ''}"


def _measured(call: Call) -> Tensor | None:
    """The rows of measured numbers that a model is given."""
    first = next(iter(call.tensors.values()), None)
    return first if first is not None and first.is_floating_point() and first.ndim > 1 else None
