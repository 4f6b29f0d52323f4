"""How many nats tokens are worth to who has counted the rows before: each by itself, and after the ones before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from limpid.doctor.description.words import number

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

LARGEST = 2**21
"""Entries of a table of counts up to which it is kept."""
NAMES = ("by how often each comes", "after the token before it", "after the two before it")
"""By how many tokens before it are looked at."""
PRIOR = 10.0
"""Tokens that what is known without the earliest one counts for."""
ENOUGH = 256
"""Tokens from which on it is told."""


@dataclass
class NextTokens:
    """Code lengths of each batch by the counts of those before it (MacKay and Peto 1995, eq. 14, one prior weight)."""

    words: int = 0  # entries of an axis of the tables; a power of two
    counts: list[np.ndarray] = field(default_factory=list)  # (context, next), by how many tokens are the context
    totals: list[np.ndarray] = field(default_factory=list)  # (context,)
    lengths: list[tuple[int, list[float]]] = field(default_factory=list)  # of each batch: tokens, nats by table

    def take(self, record: StepRecord) -> None:
        """Add the rows of a step."""
        for ids in record.token_ids:
            if ids.ndim == 2 and ids.shape[1] >= len(NAMES):
                self._add(ids.numpy().astype(np.int64, copy=False))

    def told(self) -> Iterator[str]:
        """In a sentence, of the later half of the batches."""
        late = self.lengths[len(self.lengths) // 2 :] if len(self.lengths) > 1 else []
        total = sum(tokens for tokens, _ in late)
        if total < ENOUGH:
            return
        nats = np.array([made for _, made in late]).sum(0) / total
        each = ", ".join(f"{one:.3g} {name}" for one, name in zip(nats, NAMES, strict=False))
        yield f"nats of a token, by counts of the rows before: {each} ({number(total)} tokens of the later batches)"

    def _add(self, ids: np.ndarray) -> None:
        if int(ids.min()) < 0:
            return
        self._make_room(int(ids.max()) + 1)
        first = len(NAMES) - 1  # the first token that has all of a context
        still = np.flip(np.cumsum(np.flip(ids != ids[:, -1:], 1), 1), 1) > 0  # a row's last run may be padding
        rows, places = np.nonzero(still[:, first:])
        places, nats = places + first, []
        said, context = ids[rows, places], np.zeros(len(rows), np.int64)
        likely = np.full(len(rows), 1 / max(1, self.words))
        for before, (counts, totals) in enumerate(zip(self.counts, self.totals, strict=True)):
            if before:
                context = context * self.words + ids[rows, places - before]
            likely = (counts[context, said] + PRIOR * likely) / (totals[context] + PRIOR)
            nats.append(float(-np.log(likely).sum()))
            np.add.at(counts, (context, said), 1)
            np.add.at(totals, context, 1)
        if self.counts:
            self.lengths.append((len(rows), nats))

    def _make_room(self, words: int) -> None:
        """Tables for so many words: new ones, where there are more than in the rows before."""
        if words <= self.words:
            return
        self.words, self.lengths = 1 << (words - 1).bit_length(), []
        contexts = [self.words**before for before in range(len(NAMES)) if self.words ** (before + 1) <= LARGEST]
        contexts = contexts if len(contexts) > 1 else []  # how often each comes is told of labels
        self.counts = [np.zeros((one, self.words), np.int32) for one in contexts]
        self.totals = [np.zeros(one, np.int64) for one in contexts]
