"""A model read through documents: what it thought of every token, and where in the text the tokens lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from limpid.errors import DataError
from limpid.evaluate.blocks import Blocks, blocks_of, totals
from limpid.evaluate.subject import Subject
from limpid.evaluate.surprises import Judged, judge
from limpid.evaluate.windows import Windows
from limpid.progress import Report

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Measured:
    """Every scored token of all documents, one after the other."""

    subject: Subject
    windows: Windows
    judged: Judged
    ends: Int64[Array, " token"]  # in bytes of the whole text
    sizes: Int64[Array, " token"]  # in bytes
    documents: Int64[Array, " document"]  # ends, in bytes of the whole text
    tokens: int  # scored or not

    @property
    def scored(self) -> int:
        return len(self.ends)

    @property
    def bytes(self) -> int:
        """Of the scored tokens."""
        return int(self.sizes.sum())

    @property
    def surprise(self) -> Float[Array, " token"]:
        """Nats, float64."""
        return self.judged.surprise.astype(np.float64)

    def blocks(self) -> Blocks | None:
        """Blocks for intervals of the metrics per token; None when the text is too short."""
        return blocks_of(self.ends, self.documents, self.surprise - self.surprise.mean())

    def totals(self, blocks: Blocks, *values: Float[Array, " token"]) -> Float[Array, "block quantity"]:
        """Sums over each block."""
        return totals(self.ends, self.sizes, np.stack([np.asarray(v, np.float64) for v in values], 1), blocks)


def encoded(subject: Subject, documents: Sequence[str], report: Report) -> list[tuple[Array, Array]]:
    """Each document's tokens, and the bytes that each stands for."""
    found = []
    for number, text in enumerate(documents, 1):
        ids, sizes = subject.tokenizer.encode_with_sizes(text)
        found.append((np.array(ids, np.int64), np.array(sizes, np.int64)))
        report("tokenizing", number, len(documents))
    return found


def measure(subject: Subject, documents: Sequence[tuple[Array, Array]], windows: Windows, report: Report) -> Measured:
    """Read the model through the documents.

    Raises  DataError when no token can be scored; CheckpointError when the model's logits are not numbers
    """
    rows = [(number, row) for number, (ids, _) in enumerate(documents) for row in windows.rows(ids)]
    total = sum(row.scored for _, row in rows)
    if not total:
        raise DataError("the text has no token that something stands before: give a longer text")
    done, what = 0, f"reading with {subject.name}"

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report(what, done, total)

    report(what, 0, total)
    judged = list(judge(subject.model, (row for _, row in rows), advance))
    lengths = np.array([int(sizes.sum()) for _, sizes in documents])
    starts = np.cumsum(lengths) - lengths
    ends, sizes = [], []
    places = [start + np.cumsum(sizes) for start, (_, sizes) in zip(starts, documents, strict=True)]
    for number, row in rows:
        scored = slice(row.place, row.place + row.scored)
        sizes.append(documents[number][1][scored])
        ends.append(places[number][scored])
    return Measured(
        subject,
        windows,
        Judged(*(np.concatenate(parts) for parts in zip(*judged, strict=True))),
        np.concatenate(ends),
        np.concatenate(sizes),
        np.cumsum(lengths),
        sum(len(ids) for ids, _ in documents),
    )
