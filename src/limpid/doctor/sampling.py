"""Rows that the model itself drew: passes without gradient on rows that grow by a token each time."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

DRAWS, STEPS, SHARE = 32, 16, 0.5
"""How many of the last draws are remembered, for how many steps; the share of a batch's rows that begin like them."""


class Sampling:
    """What was drawn lately, to tell a policy's own answers from data."""

    def __init__(self) -> None:
        self.last: Tensor | None = None  # rows of the last pass without gradient
        self.growing, self.steps = False, 0
        self.drawn: deque[Tensor] = deque(maxlen=DRAWS)

    def passed(self, ids: Tensor | None) -> None:
        """A pass without gradient on these tokens, (row, position); with a cache the last ones alone."""
        last, grew = self.last, self.growing
        self.last, self.growing = ids, False
        if last is None or ids is None or len(ids) != len(last):
            return
        if ids.shape[1] == last.shape[1] + 1 and torch.equal(ids[:, :-1], last):
            rows = ids
        elif ids.shape[1] == 1:
            rows = torch.cat([last, ids], 1)
        else:
            return
        if grew and self.drawn:
            self.drawn.pop()
        self.drawn.append(rows.detach())
        self.last, self.growing, self.steps = rows, True, 0

    def drew(self, batch: list[Tensor]) -> bool:
        """Whether at least half of the rows of a batch are among those that were drawn."""
        found = rows = 0
        self.last, self.growing, self.steps = None, False, self.steps + 1
        if self.steps > STEPS:
            self.drawn.clear()
        for ids in batch if self.drawn else ():
            rows += len(ids)
            for drawn in self.drawn:
                length = min(ids.shape[1], drawn.shape[1])
                known = {row.tobytes() for row in drawn[:, :length].long().cpu().numpy()}
                found += sum(row.tobytes() in known for row in ids[:, :length].long().cpu().numpy())
        return rows > 0 and found >= SHARE * rows
