"""Rows that the model is given again: how many are different, and whether their targets are the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.data_sheet import row_inputs, row_targets
from limpid.doctor.description.words import number

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

NUMBERS = 2**17
"""Of a batch whose rows are looked at."""
MOST = 2**16
"""Different rows that are remembered."""


@dataclass
class SameRows:
    """Rows as the model is given them, by hash, each with the target that it came with first."""

    targets: dict[int, int | None] = field(default_factory=dict)
    rows: int = 0
    again: int = 0  # rows that had come before with a target
    other: int = 0  # those of them whose target is another

    def take(self, record: StepRecord) -> None:
        """Add a step of one forward pass."""
        if len(record.calls) != 1 or len(self.targets) >= MOST:
            return
        x = record.token_ids[0] if record.token_ids else row_inputs(record)
        if x is None or not x.ndim or not 0 < x.numel() <= NUMBERS:
            return
        y = _targets(record, len(x))
        given, told = _hashes(x), [None] * len(x) if y is None else _hashes(y)
        self.rows += len(given)
        for row, target in zip(given, told, strict=True):
            before = self.targets.get(row)
            self.again += before is not None and target is not None
            self.other += before is not None and target is not None and before != target
            self.targets.setdefault(row, target)

    def told(self, counted: bool) -> Iterator[str]:
        """In sentences.

        counted   whether it is told elsewhere how many rows are different
        """
        if self.rows and not counted:
            yield f"rows that the model was given so far: {number(self.rows)}, {number(len(self.targets))} different"
        if self.again:
            yield (
                f"of {number(self.again)} rows that the model was given again, "
                f"{number(self.other) if self.other else 'none'} had another target than at first"
            )


def _targets(record: StepRecord, rows: int) -> Tensor | None:
    found = record.class_labels[0] if len(record.class_labels) == 1 else row_targets(record)
    return found if found is not None and len(found) == rows else None


def _hashes(rows: Tensor) -> list[int]:
    """Of each row's numbers, to the bit."""
    held = rows.detach().to("cpu").contiguous().reshape(len(rows), -1).view(torch.uint8)
    return [hash(row.tobytes()) for row in held.numpy()]
