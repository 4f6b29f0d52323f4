"""What a corpus holds, and which of its documents are held out."""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool

from limpid.data.formats import Chunk
from limpid.errors import DataError

Array = np.ndarray
CHANGED = "the text changed while it was being read: start again when nothing writes to it"


def hash_uniform(seed: int, *numbers: int) -> float:
    """A number in [0, 1) that only `seed` and `numbers` decide."""
    key = ",".join(map(str, (seed, *numbers))).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "big") / 2**56


class Digest:
    """Hash of every document's bytes and of where it ends."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._length = 0  # of this document, bytes

    def add(self, text: bytes, last: bool) -> None:
        """Count a part of a document, with which it may end."""
        self._hash.update(text)
        self._length += len(text)
        if last:
            self._hash.update(self._length.to_bytes(8, "big"))
            self._length = 0

    def of(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The same chunks, each added as it passes."""
        for chunk in chunks:
            self.add(chunk.text.encode(errors="surrogatepass"), chunk.last)
            yield chunk

    def __str__(self) -> str:
        return self._hash.hexdigest()


@dataclass
class CorpusStats:
    """What one reading of a corpus finds."""

    seed: int
    path_of: Mapping[str, int] = field(default_factory=dict)  # which of the given paths a source is of, where several
    characters: int = 0
    bytes: int = 0
    alphabet: set[str] | None = field(default_factory=set)  # its characters, unless nobody asks for them
    sources: dict[str, int] = field(default_factory=dict)  # that hold a document, numbered in order
    draws: array[float] = field(default_factory=lambda: array("d"))  # of the documents
    texts: array[int] = field(default_factory=lambda: array("Q"))  # hashes of the documents
    documents_of: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # by path, in order
    characters_of: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _digest: Digest = field(default_factory=Digest)
    _places: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    _document: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=8))

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
            path = self.path_of.get(chunk.source, 0)
            source = self.sources.setdefault(chunk.source, len(self.sources))
            self.characters += len(chunk.text)
            self.characters_of[path] += len(chunk.text)
            self.bytes += len(text)
            if self.alphabet is not None:
                self.alphabet.update(chunk.text)
            self._digest.add(text, chunk.last)
            self._document.update(text)
            if chunk.last:
                self.texts.append(int.from_bytes(self._document.digest(), "big"))
                self._document = hashlib.blake2b(digest_size=8)
                self.draws.append(hash_uniform(self.seed, self.documents))
                self._places.update(b"%d:%d," % (source, chunk.line))
                self.documents_of[path] += 1
            yield chunk

    @property
    def documents(self) -> int:
        return len(self.draws)

    @property
    def digest(self) -> str:
        """Hash of every document's bytes and of where it ends."""
        return str(self._digest)

    @property
    def places(self) -> str:
        """Hash of the number of each document's source and of its line there."""
        return self._places.hexdigest()


@dataclass(frozen=True)
class Split:
    """Documents are held out by a draw of their own; of a single document the end is.

    By path, that is done within each of the given paths. Paths to validate on are held out whole, and then nothing else
    is; a document that is in both is not trained on.
    """

    seed: int
    fraction: float
    stats: CorpusStats
    by_path: bool = False
    validation: frozenset[int] = frozenset()  # paths

    def assign(self, chunks: Iterable[Chunk]) -> Iterator[tuple[bool, Chunk]]:
        """Each chunk that is used, and whether it is held out.

        Raises  DataError for a document that was not there when the stats were made
        """
        document, left = 0, dict(self._trained_on_of_single)
        for chunk in chunks:
            if document == self.stats.documents or chunk.source not in self.stats.sources:
                raise DataError(CHANGED)
            path = self._group(self.stats.path_of.get(chunk.source, 0))
            if path in left:
                yield from _divided(chunk, left[path])
                left[path] -= len(chunk.text)
            elif not (self.validation and self.in_both[document]):
                yield bool(self.held_out[document]), chunk
            document += chunk.last

    @cached_property
    def held_out(self) -> Bool[Array, " document"]:
        """Which documents are held out; at least the lowest draw is, at least the highest is not."""
        paths, counts = list(self.stats.documents_of), list(self.stats.documents_of.values())
        if self.validation:
            return np.repeat([path in self.validation for path in paths], counts)
        draws = np.frombuffer(self.stats.draws)
        held = []
        for group in np.split(draws, np.cumsum(counts)[:-1]) if self.by_path else [draws]:
            limit = min(max(self.fraction, np.nextafter(group.min(), 1)), group.max())
            held.append(group < limit)
        return np.concatenate(held)

    @cached_property
    def in_both(self) -> Bool[Array, " document"]:
        """Which documents are not held out, although others with the same text are."""
        texts = np.frombuffer(self.stats.texts, np.uint64)
        return ~self.held_out & np.isin(texts, texts[self.held_out])

    def notes(self, what: str = "documents") -> list[str]:
        """What a user should know about it."""
        count = int(self.in_both.sum())
        if not count:
            return []
        if self.validation:
            return [f"{what} left out because they stand in the text to validate on too: {count:,}"]
        return [f"{what} that are trained on, and held out as well because they occur more than once: {count:,}"]

    def _group(self, path: int) -> int:
        return path if self.by_path else 0

    @cached_property
    def _trained_on_of_single(self) -> dict[int, int]:
        """Characters to train on, of each group that is a single document."""
        if self.validation:
            return {}
        groups = self.stats.documents_of if self.by_path else {0: self.stats.documents}
        characters = self.stats.characters_of if self.by_path else {0: self.stats.characters}
        return {path: int((1 - self.fraction) * characters[path]) for path, count in groups.items() if count == 1}


def _divided(chunk: Chunk, left: int) -> Iterator[tuple[bool, Chunk]]:
    """A chunk, of which so many characters are to train on and the rest is held out."""
    here, after = chunk.text[: max(0, left)], chunk.text[max(0, left) :]
    if here:
        yield False, replace(chunk, text=here, last=left <= len(chunk.text))
    if after:
        yield True, replace(chunk, text=after)
