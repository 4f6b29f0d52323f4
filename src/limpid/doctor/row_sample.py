"""The first rows of a run as the model was given them, with their targets: up to 1,024 rows of 64 numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.data_sheet import row_inputs, row_targets

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

ROWS, NUMBERS, CLASSES = 1024, 64, 16
"""Rows that are kept, numbers of each, and classes that are told apart."""
LOOKS = (64, 256, 1024)
"""Rows at which the sample is looked at anew."""


class RowSample:
    """Rows and targets of the first steps; `due` when there are enough of them for another look."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []  # of each step, (row, number)
        self.targets: list[Tensor] = []  # of these steps, (row, number): measured, or one column for each class
        self.labels: list[Tensor] = []  # of these steps, as they are, (row,), where they are classes
        self.is_table = False  # whether rows are a table of columns, all of them here
        self.format: torch.dtype = torch.float32  # of the inputs as given
        self.count = 0
        self.due = False
        self.fits = True  # whether all steps so far had rows of one shape

    def take(self, record: StepRecord) -> None:
        """The rows of a step, until there are enough."""
        self.due = False
        if self.count >= ROWS or not self.fits:
            return
        inputs = row_inputs(record)
        if inputs is None:
            return
        rows = numbers(inputs)
        if self.rows and rows.shape[1] != self.rows[0].shape[1]:
            self.fits = False
            return
        self.is_table, self.format = inputs.ndim == 2 and inputs.shape[1] <= NUMBERS, inputs.dtype
        targets = row_targets(record)
        if targets is not None and len(targets) == len(rows):
            self._take_targets(targets)
        self.rows.append(rows)
        before, self.count = self.count, self.count + len(rows)
        self.due = any(before < look <= self.count for look in LOOKS)

    def _take_targets(self, targets: Tensor) -> None:
        flat = targets.reshape(len(targets), -1)
        if targets.is_floating_point():
            self.targets.append(flat[:, :NUMBERS].double())
        elif flat.shape[1] == 1 and 0 <= int(flat.min()) <= int(flat.max()) < CLASSES:
            self.targets.append(torch.nn.functional.one_hot(flat[:, 0].long(), CLASSES).double())
            self.labels.append(flat[:, 0].long())

    @property
    def table(self) -> Tensor:
        """All rows, (row, number)."""
        return torch.cat(self.rows)

    @property
    def paired(self) -> tuple[list[Tensor], list[Tensor]] | None:
        """Rows and targets of each step, where every step had both."""
        same = len(self.targets) == len(self.rows) and len({t.shape[1] for t in self.targets}) == 1
        return (self.rows, self.targets) if same else None


def numbers(inputs: Tensor) -> Tensor:
    """Up to 64 numbers of each row: its columns, or means over as many stretches of what it holds, (row, number)."""
    flat = inputs.reshape(len(inputs), -1).float()
    if flat.shape[1] <= NUMBERS:
        return flat.clone()
    return torch.nn.functional.adaptive_avg_pool1d(flat[:, None], NUMBERS)[:, 0]
