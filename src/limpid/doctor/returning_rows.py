"""A few rows of the first batch, followed through the run: what each looks like when it comes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from limpid.doctor.data_sheet import readable, row_inputs, row_targets, tensors_in

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

ROWS, NUMBERS, VISITS = 16, 512, 3
"""Rows that are followed, numbers of each, and times that a row is looked at."""
LEAST = 16
"""Numbers by which a row is known again without its target."""
ALIKE, NEARER = 0.5, 0.5
"""Least cosine of a row and itself, about the batch's mean; and how far it is, squared, over the next nearest row."""
ENOUGH, TOLD = 8, 512
"""Rows that came three times, and numbers of them together, of which no more are waited for."""


class Visits(NamedTuple):
    """The rows that came three times, as they were each time, (row, number)."""

    first: Tensor
    second: Tensor
    third: Tensor

    @property
    def now_and_then(self) -> bool:
        """Whether some row came back as it was: what changes rows does so by chance, or not at all."""
        kept = (self.first == self.second).all(1) | (self.second == self.third).all(1)
        return bool(kept.any())

    @property
    def along(self) -> Tensor:
        """Cosine of each row's second change and its first, (row,): -1/2 where each change is made on the same row."""
        return F.cosine_similarity(self.second - self.first, self.third - self.second, dim=1)

    @property
    def growth(self) -> float:
        """How much further rows are from their first visit at the third than at the second, squares: 1 or 2."""
        away, further = self.second - self.first, self.third - self.first
        return float(further.square().sum() / away.square().sum().clamp(min=1e-30))

    def same_map(self, rounding: float) -> tuple[float, float] | None:
        """a and b of x → a x + b where this is what happened to every row, both times, to rounding."""
        a = float(self.second.std() / self.first.std().clamp(min=1e-30))
        b = float(self.second.mean() - a * self.first.mean())
        for before, after in ((self.first, self.second), (self.second, self.third)):
            if float((a * before + b - after).abs().max()) > rounding * float(after.abs().max()):
                return None
        return a, b


class ReturningRows:
    """Rows known again by a target that no other row has, or by how much they are like themselves."""

    def __init__(self) -> None:
        self.visits: list[list[Tensor]] = []  # of each row that is followed
        self.keys: Tensor | None = None  # their targets, where those tell rows apart
        self.is_over = False

    def take(self, record: StepRecord) -> Visits | None:
        """The rows of a step; all that came three times, once enough have."""
        rows = None if self.is_over else _as_served(record)
        if rows is None or (self.visits and rows.shape[1] != self.visits[0][0].shape[0]):
            return None
        keys = _keys(record, len(rows))
        if not self.visits:
            self.keys = None if keys is None else keys[:ROWS]
            self.is_over = self.keys is None and rows.shape[1] < LEAST
            self.visits = [[row.clone()] for row in rows[:ROWS]]
            return None
        for index, at in self._known(rows, keys):
            if len(self.visits[index]) < VISITS:
                self.visits[index].append(rows[at].clone())
        whole = [seen for seen in self.visits if len(seen) == VISITS]
        if len(whole) < min(len(self.visits), max(ENOUGH, TOLD // rows.shape[1])):
            return None
        self.is_over = True
        return Visits(*(torch.stack([seen[k] for seen in whole]) for k in range(VISITS)))

    def _known(self, rows: Tensor, keys: Tensor | None) -> list[tuple[int, int]]:
        """Which followed row each row of a batch is, where one is."""
        if self.keys is not None:
            pairs = [] if keys is None else (self.keys[:, None] == keys).nonzero().tolist()
            return [(index, at) for index, at in pairs]
        if len(rows) < 3:
            return []
        last = torch.stack([seen[-1] for seen in self.visits])
        alike = _directions(last) @ _directions(rows).T
        best = alike.topk(2, dim=1)
        away = 1 - best.values  # half of the squared distance
        sure = (best.values[:, 0] > ALIKE) & (away[:, 0] < NEARER * away[:, 1])
        return [(int(index), int(best.indices[index, 0])) for index in sure.nonzero()[:, 0]]


def _directions(rows: Tensor) -> Tensor:
    return F.normalize(rows - rows.mean(0), dim=1)


def _as_served(record: StepRecord) -> Tensor | None:
    """Up to 512 numbers of each row, where the model is given the very rows that the batch holds, (row, number)."""
    given = row_inputs(record) if len(record.micros) == 1 else None
    held = None if given is None else next(tensors_in(record.micros[0].given), None)
    if given is None or held is None or held.shape != given.shape or (held := readable(record, held)) is None:
        return None
    flat = given.reshape(len(given), -1)
    flat = flat[:, :: max(1, -(-flat.shape[1] // NUMBERS))].float()
    return flat if held is given or bool((held == given).all()) else None


def _keys(record: StepRecord, rows: int) -> Tensor | None:
    """One measured target for each row, all different."""
    targets = row_targets(record)
    if targets is None or not targets.is_floating_point() or targets.numel() != rows:
        return None
    keys = targets.reshape(-1)
    return keys.clone() if len(keys.unique()) == rows else None
