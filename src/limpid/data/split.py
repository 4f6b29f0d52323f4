"""What a corpus holds, and which of its documents are held out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from limpid.data.formats import Piece
from limpid.errors import DataError


def draw(seed: int, *numbers: int) -> float:
    """A number in [0, 1) that only `seed` and `numbers` decide."""
    key = ",".join(map(str, (seed, *numbers))).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "big") / 2**56


@dataclass
class Census:
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

    def counted(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The same pieces, each added to the census as it passes."""
        for piece in pieces:
            try:
                text = piece.text.encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{piece.name} holds {piece.text[error.start]!r} at character {error.start}, half of a surrogate "
                    "pair, which UTF-8 cannot hold: mend or remove the document"
                ) from error
            self.sources.setdefault(piece.source, len(self.sources))
            self.characters += len(piece.text)
            self.bytes += len(text)
            self.alphabet.update(piece.text)
            self._hash.update(text)
            if piece.last:
                self._hash.update((self.bytes - self._bytes_before).to_bytes(8, "big"))
                self._bytes_before = self.bytes
                place = draw(self.seed, self.documents)
                self.lowest, self.highest = min(self.lowest, place), max(self.highest, place)
                self.documents += 1
            yield piece

    @property
    def digest(self) -> str:
        """Hash of every document's bytes and of where it ends."""
        return self._hash.hexdigest()


@dataclass(frozen=True)
class Split:
    """Documents are held out by a draw of their own; of a single document the end is."""

    seed: int
    fraction: float
    census: Census

    def __call__(self, pieces: Iterable[Piece]) -> Iterator[tuple[bool, Piece]]:
        """Each piece, and whether it is held out."""
        if self.census.documents == 1:
            yield from self._by_text(pieces)
            return
        # at least the lowest draw is held out, at least the highest is not
        limit = min(max(self.fraction, math.nextafter(self.census.lowest, 1)), self.census.highest)
        document = 0
        for piece in pieces:
            yield draw(self.seed, document) < limit, piece
            document += piece.last

    def _by_text(self, pieces: Iterable[Piece]) -> Iterator[tuple[bool, Piece]]:
        left = int((1 - self.fraction) * self.census.characters)  # characters still to train on
        for piece in pieces:
            here, after = piece.text[: max(0, left)], piece.text[max(0, left) :]
            if here:
                yield False, replace(piece, text=here, last=left <= len(piece.text))
            if after:
                yield True, replace(piece, text=after)
            left -= len(piece.text)
