"""How the targets of the run are spread: shares of two values by column, tenths of measured numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.data_sheet import row_targets
from limpid.doctor.description.words import number, share, span

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

KEPT, COLUMNS = 4096, 32
"""Rows that are kept, and numbers of a row up to which they are."""
ENOUGH = 64
"""Rows from which on they are told."""


@dataclass
class TargetValues:
    """Those of the first rows of the run."""

    rows: list[Tensor] = field(default_factory=list)  # (row, column)
    count: int = 0

    def take(self, record: StepRecord) -> None:
        """Add a step."""
        if self.count >= KEPT:
            return
        target = row_targets(record)
        if target is None or not target.is_floating_point() or target.numel() > COLUMNS * len(target):
            return
        x = target.detach().float().reshape(len(target), -1).cpu()
        if x.shape[1] and (not self.rows or x.shape[1] == self.rows[0].shape[1]):
            self.rows.append(x[: KEPT - self.count].clone())
            self.count += len(self.rows[-1])

    def told(self) -> Iterator[str]:
        """In a sentence."""
        if self.count < ENOUGH:
            return
        x = torch.cat(self.rows)
        of = f"targets of the first {number(len(x))} rows"
        if bool(((x == 0) | (x == 1)).all()):
            yield f"{of}: 1 in {_shares(x)}{_in_a_row(x)}"
        elif x.shape[1] == 1 and int(x.unique().numel()) > COLUMNS:
            tenths = x[:, 0].quantile(torch.linspace(0, 1, 11))
            yield f"{of} by tenths: {', '.join(f'{float(one):.3g}' for one in tenths)}"


def _shares(x: Tensor) -> str:
    each = [share(float(one)) for one in x.mean(0)]
    return each[0] if len(each) == 1 else "by column " + ", ".join(each)


def _in_a_row(x: Tensor) -> str:
    """How many ones rows have, where a row has several columns."""
    if x.shape[1] == 1:
        return ""
    ones = x.sum(1).int()
    counts = ones.bincount().tolist()
    said = ", ".join(f"{many} in {share(times / len(x))}" for many, times in enumerate(counts) if times)
    return f"; ones of a row: {said if len(counts) <= 8 else span(ones.tolist())}"
