"""Passes without gradient: on rows that the model draws, a token longer each time, and on the same rows again."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

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


class Votes:
    """Passes with dropout on the same tensors, one after another: a mean over masks, not an evaluation."""

    def __init__(self) -> None:
        self.last: list[weakref.ref[Tensor]] = []
        self.times = 0

    def passed(self, args: Iterable[Any], kwargs: dict[str, Any]) -> int:
        """How many more evaluations of a single pass there are: -1 where the last one was the first of several."""
        given = [value for value in [*args, *kwargs.values()] if isinstance(value, Tensor)]
        again = len(given) == len(self.last) > 0 and all(r() is v for r, v in zip(self.last, given, strict=True))
        self.last, self.times = [weakref.ref(value) for value in given], self.times + 1 if again else 1
        return 1 if not again else -1 if self.times == 2 else 0

    def ended(self) -> None:
        """A pass with gradients: what follows is another evaluation."""
        self.last, self.times = [], 0
