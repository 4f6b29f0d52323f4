"""Rows as a loss of measured numbers sees them: what each is given, its target, and what the model says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.data_sheet import row_inputs
from limpid.doctor.description.words import share

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

COLUMNS, ROWS, SHOWN = 8, 3, 14
"""Numbers of a target that are told, rows that are shown, numbers or tokens of a row's inputs."""


def examples(record: StepRecord) -> Iterator[str]:
    """Targets by column, and the first rows, of what torch's regressions and binary cross-entropies were given."""
    pair = record.difference if record.difference is not None else record.binary
    if pair is None or pair[0].ndim < 1 or pair[0].shape != pair[1].shape or not len(pair[0]):
        return
    made, target = (one.double().reshape(len(one), -1) for one in pair)
    if target.shape[1] > COLUMNS:
        return
    if target.shape[1] > 1:
        of_two = bool(((target == 0) | (target == 1)).all())
        means = [share(float(x)) if of_two else f"{float(x):.3g}" for x in target.mean(0)]
        listed = ", ".join(means)
        yield f"targets by column: 1 in {listed} of the rows" if of_two else f"targets by column: means {listed}"
    given = _given(record, len(target))
    for row in range(min(ROWS, len(target))):
        what = "" if given is None else f" {_numbers(given[row].flatten())},"
        yield f"row {row},{what} has target {_numbers(target[row])}; the model says {_numbers(made[row])}"


def _given(record: StepRecord, rows: int) -> Tensor | None:
    """What the model is given of each row: tokens, or measured numbers."""
    ids = next((one for one in record.token_ids if len(one) == rows), None)
    if ids is not None or len(record.calls) != 1:
        return ids
    measured = row_inputs(record)
    return measured if measured is not None and len(measured) == rows else None


def _numbers(values: Tensor) -> str:
    shown = values[:SHOWN]
    whole = not values.is_floating_point() or bool((values == values.round()).all())
    said = " ".join(str(int(x)) if whole else f"{float(x):.3g}" for x in shown)
    return said + (" …" if len(values) > SHOWN else "")


def on_rows(given: Tensor, target: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
    """What a loss compares, on the host, where it is no more than so many numbers."""
    if given.shape != target.shape or given.numel() > most:
        return None
    return given.detach().to("cpu", torch.float32), target.detach().to("cpu", torch.float32)
