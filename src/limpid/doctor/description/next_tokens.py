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
MOST, ENOUGH = 1024, 256
"""Tokens of a batch that are looked at, and of the later half of the run from which on it is told."""
PARTS = 64
"""Of the run, of which sums are kept; two become one when there are more."""


@dataclass
class NextTokens:
    """Code lengths of each batch by the counts of those before it (MacKay and Peto 1995, with one prior weight)."""

    words: int = 0  # entries of an axis of the tables; a power of two
    counts: list[np.ndarray] = field(default_factory=list)  # (context, next), by how many tokens are the context
    totals: list[np.ndarray] = field(default_factory=list)  # (context,)
    parts: list[np.ndarray] = field(default_factory=list)  # sums of some batches: their number, tokens, nats by table
    width: int = 1  # batches of a part

    def take(self, record: StepRecord) -> None:
        """Add the rows of a step."""
        for ids in record.token_ids:
            if ids.ndim == 2 and ids.shape[1] >= len(NAMES):
                self._add(ids[: max(1, MOST // ids.shape[1])].numpy().astype(np.int64, copy=False))

    def told(self) -> Iterator[str]:
        """In a sentence, of the later half of the batches."""
        late = self.parts[len(self.parts) // 2 :] if len(self.parts) > 1 else []
        _, tokens, *nats = np.sum(late, axis=0) if late else np.zeros(2)
        if tokens >= ENOUGH:
            each = ", ".join(f"{one / tokens:.3g} {name}" for one, name in zip(nats, NAMES, strict=False))
            yield (
                f"nats of a token, by counts of the rows before: {each} ({number(int(tokens))} tokens of the later "
                "batches)"
            )

    def _add(self, ids: np.ndarray) -> None:
        self._make_room(int(ids.max()) + 1)
        if not self.counts or int(ids.min()) < 0:
            return
        first = len(NAMES) - 1  # the first token that has all of a context
        still = np.flip(np.cumsum(np.flip(ids != ids[:, -1:], 1), 1), 1) > 0  # a row's last run may be padding
        rows, places = np.nonzero(still[:, first:])
        places, nats = places + first, []
        said, context = ids[rows, places], np.zeros(len(rows), np.int64)
        likely = np.full(len(rows), 1 / self.words)
        for before, (counts, totals) in enumerate(zip(self.counts, self.totals, strict=True)):
            if before:
                context = context * self.words + ids[rows, places - before]
            likely = (counts[context, said] + PRIOR * likely) / (totals[context] + PRIOR)
            nats.append(float(-np.log(likely).sum()))
            np.add.at(counts, (context, said), 1)
            np.add.at(totals, context, 1)
        self._keep(np.array([1, len(rows), *nats]))

    def _keep(self, made: np.ndarray) -> None:
        if self.parts and self.parts[-1][0] < self.width:
            self.parts[-1] += made
            return
        self.parts.append(made)
        if len(self.parts) > PARTS:
            self.parts = [np.sum(self.parts[i : i + 2], axis=0) for i in range(0, len(self.parts), 2)]
            self.width *= 2

    def _make_room(self, words: int) -> None:
        """Tables for so many words: new ones, where there are more than in the rows before."""
        if words <= self.words:
            return
        self.words, self.parts, self.width = 1 << (words - 1).bit_length(), [], 1
        contexts = [self.words**before for before in range(len(NAMES)) if self.words ** (before + 1) <= LARGEST]
        contexts = contexts if len(contexts) > 1 else []  # how often each comes is told of labels
        self.counts = [np.zeros((one, self.words), np.int32) for one in contexts]
        self.totals = [np.zeros(one, np.int64) for one in contexts]
