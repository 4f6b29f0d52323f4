"""Whether the same stretches of tokens come again in other rows, and where in them they stand then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from limpid.doctor.description.words import number, share

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

LENGTH = 8
"""Tokens of a stretch."""
ONE_IN = 16
"""Of so many stretches one is looked at, always the same ones whatever row they stand in."""
MOST, ENOUGH = 2**16, 64
"""Different stretches that are remembered, and those that are needed for a sentence."""
WEIGHTS = np.random.Generator(np.random.PCG64(11)).integers(1, 2**62, LENGTH, dtype=np.int64) | 1


@dataclass
class Stretches:
    """Of the rows so far, until as many different ones are known as are remembered."""

    seen: int = 0
    again: int = 0  # of those seen, what was known before
    elsewhere: int = 0  # of these, at another place of a row than the first time
    first: dict[int, int] = field(default_factory=dict)  # hash -> the place at which it stood first

    def take(self, record: StepRecord) -> None:
        """Add the rows of a step."""
        for ids in record.token_ids:
            if ids.ndim == 2 and ids.shape[1] >= 2 * LENGTH and len(self.first) < MOST:
                self._add(ids.numpy().astype(np.int64, copy=False))

    def _add(self, ids: np.ndarray) -> None:
        width = ids.shape[1] - LENGTH + 1
        hashes = sum(ids[:, i : i + width] * weight for i, weight in enumerate(WEIGHTS))
        varied = (ids[:, 1:] != ids[:, :-1]).cumsum(1)  # a stretch of one token alone is padding
        varied = np.concatenate([np.zeros((len(ids), 1), dtype=varied.dtype), varied], 1)
        chosen = ((hashes >> 40) % ONE_IN == 0) & (varied[:, LENGTH - 1 :] > varied[:, :width])
        for key, place in zip(hashes[chosen].tolist(), np.nonzero(chosen)[1].tolist(), strict=True):
            before = self.first.get(key)
            self.first.setdefault(key, place)
            self.again += before is not None
            self.elsewhere += before not in (None, place)
        self.seen += int(chosen.sum())

    def told(self) -> Iterator[str]:
        """In a sentence."""
        if self.seen < ENOUGH:
            return
        where = f", {share(self.elsewhere / self.again)} of them at another place of a row" if self.again else ""
        yield (
            f"of stretches of {LENGTH} tokens {share(self.again / self.seen)} had been there before{where} "
            f"({number(self.seen)} looked at)"
        )
