"""What the model says of its rows: its numbers, and how they lie beside the targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.data_sheet import row_targets
from limpid.doctor.description.inputs import measured
from limpid.doctor.description.words import number, share
from limpid.doctor.loop_facts import FITS

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

PASSES, COLUMNS = 3, 8
"""Passes that are told, and outputs of a row up to which each is held against its target."""
FEWEST = 4
"""Rows from which on they are."""


def outputs(record: StepRecord) -> Iterator[str]:
    """Of passes that return a number or a few of each row, in the order of the passes."""
    by_pass = {index: made for index, (made, _) in zip(record.row_passes, record.row_gradients, strict=True)}
    for index, made in sorted(by_pass.items())[:PASSES]:
        if made.is_floating_point() and made.numel():
            which = f"pass {index + 1} gives in this step" if len(by_pass) > 1 else "it gives in this step"
            yield f"{which} {' × '.join(map(number, made.shape))}, {measured(made)}{_lengths(made)}"


def against_targets(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """How outputs lie beside targets: of classes how many are right, of numbers on which side and how near."""
    yield from _right(record)
    target = row_targets(record)
    if target is None and record.difference is not None:
        made, target = record.difference
    elif target is not None and len(record.row_gradients) == 1 and not record.taught:
        made = record.row_gradients[0][0]
    else:
        return
    if len(made) != len(target) or target.numel() < FEWEST:
        return
    x, y = (one.double().reshape(len(target), -1) for one in (made, target))
    if y.shape[1] not in (1, x.shape[1]) or x.shape[1] > COLUMNS or not bool(x.isfinite().all() & y.isfinite().all()):
        return
    y = y.expand_as(x)
    for column in range(x.shape[1]):
        name = "outputs" if x.shape[1] == 1 else f"output {column}"
        yield f"{name} beside {'its target' if column else 'the target'}: {_beside(x[:, column], y[:, column])}"


def _right(record: StepRecord) -> Iterator[str]:
    """Of outputs that are scores of classes, how often that of the label is the largest."""
    if len(record.row_gradients) != 1 or len(record.taught) != 1:
        return
    made, labels = record.row_gradients[0][0], _labels(record)
    if labels is None or made.ndim != 2 or len(made) != len(labels) or made.shape[1] < 2:
        return
    known = (labels >= 0) & (labels < made.shape[1])
    if not bool(known.any()):
        return
    said = made.argmax(1)
    right, likely = said[known] == labels[known], made[known].float().softmax(1).amax(1)
    values, counts = said.unique(return_counts=True)
    common = int(counts.argmax())
    yield (
        f"the label has the largest output in {share(float(right.double().mean()))} of {number(len(right))} rows; the "
        f"largest probability is {float(likely.mean()):.2g} in the mean; the class that most rows are said to be, "
        f"{int(values[common])}, is said of {share(float(counts[common]) / len(made))}"
    )


def _labels(record: StepRecord) -> Tensor | None:
    """The batch's own; else those that the gradient shows, where it is a cross-entropy's."""
    own, one = record.class_labels, record.taught[0]
    if len(own) == 1:
        return own[0].cpu()
    exact = one.misfit < FITS and one.complete
    return one.taught.cpu().masked_fill(~one.labelled.cpu(), -1) if exact else None


def _beside(x: Tensor, y: Tensor) -> str:
    values = y.unique()
    if len(values) == 2:
        low, high = (float(x[y == value].mean()) for value in values)
        return f"mean {high:.3g} of rows with {float(values[1]):.3g}, {low:.3g} of rows with {float(values[0]):.3g}"
    above = share(float((y > x).double().mean()))
    off = f"targets are above in {above} of the rows, target less output {float((y - x).mean()):.3g} in the mean"
    if len(x) < FEWEST or not float(x.std()) or not float(y.std()):
        return off
    together = float(torch.corrcoef(torch.stack([x, y]))[0, 1])
    return f"{off}, deviation {float((y - x).std()):.3g}; correlation {together:.2f}"


def _lengths(made: Tensor) -> str:
    """Where every row is a vector of one length."""
    if made.ndim != 2 or made.shape[1] < 2:
        return ""
    lengths = made.float().norm(dim=1)
    spread = float(lengths.max() - lengths.min())
    return f"; every row has length {float(lengths[0]):.3g}" if spread < 1e-3 * float(lengths.max()) else ""
