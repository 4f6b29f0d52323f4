"""What rows and entries weigh in a loss: by label, by column, and beside numbers of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.description.pushes import SCATTERS, by_row, rank_correlation
from limpid.doctor.loop_facts import FITS

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

EVEN = 0.02
"""Deviation of weights, relative, below which they are alike."""
SMALL = 1e-3
"""Errors, of the largest, below which an entry's weight is not read."""
FEWEST, SHOWN, NUMBERS = 8, 8, 3
"""Entries from which on anything is told; labels or columns that are told one by one; numbers of the batch."""
FORM = 0.5
"""Share of entries with an error whose gradient must point as the error does."""


@dataclass(frozen=True)
class Weights:
    """What each entry weighs: its gradient over its error, which is a prediction less its target."""

    each: Tensor  # (row, column), not a number where it is not known
    target: Tensor  # the same shape

    def told(self, numbers: Mapping[str, Tensor]) -> Iterator[str]:
        """In sentences; nothing where all weigh alike.

        numbers   of the batch, (row,) each
        """
        known = self.each.isfinite()
        weights = self.each[known]
        mean = float(weights.mean()) if len(weights) >= FEWEST else 0.0
        if not mean or float(weights.std()) < EVEN * abs(mean):
            return
        relative = self.each / mean
        said = [f"deviation {float((weights / mean).std()):.2g} of the mean"]
        values = self.target[known].unique()
        if 1 < len(values) <= SHOWN:
            means = ((v, relative[known & (self.target == v)].mean()) for v in values)
            said.append("by target " + ", ".join(f"{float(v):.3g}: {float(m):.2g}" for v, m in means))
        if 1 < self.each.shape[1] <= SHOWN:
            said.append("by column " + " ".join(f"{float(x):.2g}" for x in relative.nanmean(0)))
        said += self._beside(relative, known, numbers)
        yield f"what an entry weighs, its gradient over output less target, in parts of the mean: {'; '.join(said)}"

    def _beside(self, relative: Tensor, known: Tensor, numbers: Mapping[str, Tensor]) -> Iterator[str]:
        """Numbers of the batch's rows with which weights go up or down."""
        rows = known.any(1)
        of_row = relative.nanmean(1)[rows]
        found = []
        for name, x in numbers.items():
            if len(x) == len(rows) and int(x[rows].unique().numel()) > 1 and int(rows.sum()) >= FEWEST:
                r = rank_correlation(of_row, x[rows].double())
                if abs(r) * (len(of_row) - 1) ** 0.5 > SCATTERS:
                    found.append((abs(r), f"the larger the {'higher' if r > 0 else 'lower'} {name} (rank {r:.2f})"))
        yield from (said for _, said in sorted(found, reverse=True)[:NUMBERS])


def entry_weights(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Of a step of one forward pass whose loss is a cross-entropy, a binary one, or of squared errors."""
    found = _of_classes(record) or _of_errors(record)
    if found is not None:
        yield from found.told(by_row(record))


def _of_classes(record: StepRecord) -> Weights | None:
    """Of one label for each row."""
    if len(record.taught) != 1 or record.taught[0].misfit >= FITS or not record.taught[0].complete:
        return None
    one = record.taught[0]
    if one.ids is not None:
        return None
    weight = one.weight.cpu().double().masked_fill(~one.labelled.cpu(), torch.nan)
    return Weights(weight[:, None], one.taught.cpu().double()[:, None])


def _of_errors(record: StepRecord) -> Weights | None:
    """Of predictions that are held against a target entry by entry."""
    pair = record.binary if record.binary is not None else record.difference
    if pair is None or len(record.place_gradients) != 1 or len(record.micros) != 1:
        return None
    (made, target), gradient = (one.double() for one in pair), record.place_gradients[0].double()
    if made.numel() != target.numel() or gradient.numel() != made.numel() or not made.ndim:
        return None
    errors = (made.sigmoid() if record.binary is not None else made).flatten() - target.flatten()
    gradient, largest = gradient.flatten(), float(errors.abs().max())
    clear = errors.abs() > SMALL * largest
    if not largest or float((gradient * errors >= 0)[clear].double().mean()) < FORM:
        return None
    shape = (len(made), -1)
    return Weights((gradient / errors).masked_fill(~clear, torch.nan).reshape(shape), target.reshape(shape))
