"""Whether targets go with the inputs of their rows: by column, and by a linear map fitted to rows of the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from limpid.doctor.data_sheet import row_inputs, row_targets
from limpid.doctor.description.words import number, share

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

ROWS, NUMBERS, TARGETS = 1024, 64, 16
"""Rows of the run that are kept, numbers of one up to which they are, and numbers or classes of its target."""
ENOUGH = 4
"""Rows for each number of an input from which on a fit says something."""
COLUMNS = 12
"""Up to which each is told."""
HELD_OUT = 5
"""Every fifth row is left out of the fit, and judges it."""
RIDGE = 1e-3
"""Share of the inputs' mean variance that is added to each, so that a column of zeros does no harm."""


@dataclass
class Fits:
    """The first rows of the run with their targets; none where these are of another kind."""

    inputs: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    rows: int = 0

    def take(self, record: StepRecord) -> None:
        """Add a step of one forward pass."""
        if self.rows >= ROWS or len(record.calls) != 1:
            return
        x, y = row_inputs(record), row_targets(record)
        if x is None or y is None or len(x) != len(y) or not 0 < x[0].numel() <= NUMBERS or not y.numel():
            return
        classes = not y.is_floating_point()
        if y.numel() > len(y) * TARGETS or (classes and (y.numel() != len(y) or not int(y.min()) >= 0)):
            return
        x, y = x.detach().double().flatten(1), y.detach()
        y = y.flatten().long() if classes else y.double().reshape(len(y), -1)
        if self.inputs and (self.inputs[0].shape[1:] != x.shape[1:] or self.targets[0].shape[1:] != y.shape[1:]):
            return
        self.inputs.append(x.clone())
        self.targets.append(y.clone())
        self.rows += len(x)

    def told(self) -> Iterator[str]:
        """In sentences."""
        if not self.rows:
            return
        x, y = torch.cat(self.inputs), torch.cat(self.targets)
        classes = y.ndim == 1
        if len(x) < ENOUGH * (x.shape[1] + 1) or not bool(x.isfinite().all() & y.isfinite().all()):
            return
        if classes and not 2 <= int(y.max()) + 1 <= TARGETS:
            return
        one = F.one_hot(y).double() if classes else y
        if x.shape[1] <= COLUMNS and (classes or one.shape[1] == 1):
            what = "share of its variance that lies between labels" if classes else "correlation with the target"
            each = " ".join(f"{value:.2f}" for value in _by_column(x, one, classes))
            yield f"of {number(len(x))} rows of the run, each column of the input's {what}: {each}"
        yield from _linear(x, one, classes)


def _by_column(x: Tensor, y: Tensor, classes: bool) -> list[float]:
    centred = x - x.mean(0)
    size = centred.square().sum(0)
    if classes:
        counts = y.sum(0).clamp(min=1)
        between = ((y.T @ centred / counts[:, None]).square() * counts[:, None]).sum(0)
        return (between / size.clamp(min=1e-300)).tolist()
    other = y[:, 0] - y[:, 0].mean()
    return (centred.T @ other / (size.sqrt() * other.norm()).clamp(min=1e-300)).tolist()


def _linear(x: Tensor, y: Tensor, classes: bool) -> Iterator[str]:
    """What a linear map with a constant makes of rows that it was not fitted to."""
    out = torch.arange(len(x)) % HELD_OUT == HELD_OUT - 1
    shift, level = x[~out].mean(0), y[~out].mean(0)
    fitted = x[~out] - shift
    added = torch.eye(x.shape[1], dtype=x.dtype) * (RIDGE * fitted.square().sum(0).mean()).clamp(min=1e-300)
    weights = torch.linalg.solve(fitted.T @ fitted + added, fitted.T @ (y[~out] - level))
    said, judged = (x[out] - shift) @ weights + level, y[out]
    how = f"a linear map of the inputs, fitted to {number(int((~out).sum()))} of these rows,"
    if classes:
        right = float((said.argmax(1) == judged.argmax(1)).double().mean())
        common = float((judged.argmax(1) == int(level.argmax())).double().mean())
        of = f"{number(int(out.sum()))} others (the commonest label: {share(common)})"
        yield f"{how} finds the label of {share(right)} of {of}"
        return
    whole = float((judged - judged.mean(0)).square().sum())
    if whole:
        explained = 1 - float((said - judged).square().sum()) / whole
        yield f"{how} explains {explained:.0%} of the variance of the targets of {number(int(out.sum()))} others"
