"""What a corpus holds, and which of its documents are held out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from limpid.data.formats import Chunk
from limpid.errors import DataError


def hash_uniform(seed: int, *numbers: int) -> float:
    """A number in [0, 1) that only `seed` and `numbers` decide."""
    key = ",".join(map(str, (seed, *numbers))).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "big") / 2**56


@dataclass
class CorpusStats:
    """What one reading of a corpus finds."""

    seed: int
    documents: int = 0
    characters: int = 0
    bytes: int = 0
    alphabet: set[str] = field(default_factory=set)
    sources: dict[str, int] = field(default_factory=dict)  # that hold a document, numbered in order
    lowest: float = 1.0  # of the documents' draws
    highest: float = 0.0
    _hash: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    _bytes_before: int = 0  # this document

    def counted(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The same chunks, each added to the stats as it passes."""
        for chunk in chunks:
            try:
                text = chunk.text.encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{chunk.name} holds {chunk.text[error.start]!r} at character {error.start}, half of a surrogate "
                    "pair, which UTF-8 cannot hold: mend or remove the document"
                ) from error
            self.sources.setdefault(chunk.source, len(self.sources))
            self.characters += len(chunk.text)
            self.bytes += len(text)
            self.alphabet.update(chunk.text)
            self._hash.update(text)
            if chunk.last:
                self._hash.update((self.bytes - self._bytes_before).to_bytes(8, "big"))
                self._bytes_before = self.bytes
                place = hash_uniform(self.seed, self.documents)
                self.lowest, self.highest = min(self.lowest, place), max(self.highest, place)
                self.documents += 1
            yield chunk

    @property
    def digest(self) -> str:
        """Hash of every document's bytes and of where it ends."""
        return self._hash.hexdigest()


@dataclass(frozen=True)
class Split:
    """Documents are held out by a draw of their own; of a single document the end is."""

    seed: int
    fraction: float
    stats: CorpusStats

    def assign(self, chunks: Iterable[Chunk]) -> Iterator[tuple[bool, Chunk]]:
        """Each chunk, and whether it is held out."""
        if self.stats.documents == 1:
            yield from self._by_text(chunks)
            return
        # at least the lowest draw is held out, at least the highest is not
        limit = min(max(self.fraction, math.nextafter(self.stats.lowest, 1)), self.stats.highest)
        document = 0
        for chunk in chunks:
            yield hash_uniform(self.seed, document) < limit, chunk
            document += chunk.last

    def _by_text(self, chunks: Iterable[Chunk]) -> Iterator[tuple[bool, Chunk]]:
        left = int((1 - self.fraction) * self.stats.characters)  # characters still to train on
        for chunk in chunks:
            here, after = chunk.text[: max(0, left)], chunk.text[max(0, left) :]
            if here:
                yield False, replace(chunk, text=here, last=left <= len(chunk.text))
            if after:
                yield True, replace(chunk, text=after)
            left -= len(chunk.text)
