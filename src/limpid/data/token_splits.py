"""Both splits of a corpus as tokens, led back to its documents."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt

from limpid.data.joined import Joined
from limpid.data.records import document_name
from limpid.data.tokenizer import Tokenizer
from limpid.errors import DataError

Array = np.ndarray


class Passage(NamedTuple):
    """Tokens of the training split that follow each other and belong to one document."""

    document: str
    offset: int  # tokens of the document before them
    start: int  # in the split
    tokens: int


class Counts(NamedTuple):
    """How much of a text is in a split."""

    documents: int
    bytes: int
    tokens: int


class PathTokens(NamedTuple):
    """What one of the given paths brought."""

    path: int  # its number: those to train on first, then those to validate on
    documents: int  # that were read
    train: Counts
    held_out: Counts


@dataclass(frozen=True)
class Tokens:
    """Both splits of a corpus, in files that are mapped into memory."""

    train: UInt[Array, " token"] | Joined
    validation: UInt[Array, " held_out"] | Joined
    tokenizer: Tokenizer
    fingerprint: str  # changes with the text, the split and the tokenizer
    counts: tuple[Counts, Counts]  # of both splits
    documents: Int64[Array, "document 3"]  # of the training split: start in tokens, source, line
    sources: list[str]
    notes: list[str]  # what a user should know
    places: str | None = None  # hash of each document's source and line, where known
    paths: tuple[PathTokens, ...] = ()  # in order; none where the tokens were made of the same text given otherwise

    @property
    def validation_bytes(self) -> int:
        """Bytes of text held out, without ends of text."""
        return self.counts[1].bytes

    @property
    def regions(self) -> dict[int, tuple[int, int]]:
        """Where the tokens of each path begin and end in the training split."""
        ends = itertools.accumulate(path.train.tokens for path in self.paths)
        return {path.path: (end - path.train.tokens, end) for path, end in zip(self.paths, ends, strict=True)}

    def opening(self, characters: int = 24) -> str:
        """The first words of the held-out text."""
        words = " ".join(self.tokenizer.decode(self.validation[:characters].tolist()).split())[:characters]
        return words.rpartition(" ")[0] or words

    def passages(self, start: int, length: int) -> Iterator[Passage]:
        """The documents that tokens `start` … `start + length - 1` of the training split belong to, in order."""
        end = start + length
        if not 0 <= start < end <= len(self.train):
            raise DataError(
                f"tokens {start} … {end - 1} lie outside the training split of {len(self.train)} tokens: these rows "
                "belong to another text"
            )
        starts = self.documents[:, 0]
        first, after = (int(np.searchsorted(starts, place, side="right")) - 1 for place in (start, end - 1))
        for number in range(first, after + 1):
            begin, source, line = (int(value) for value in self.documents[number])
            stop = int(starts[number + 1]) if number + 1 < len(starts) else len(self.train)
            here = max(start, begin)
            yield Passage(document_name(self.sources[source], line), here - begin, here, min(end, stop) - here)
