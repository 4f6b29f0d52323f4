"""Words of a text without case and punctuation, and hashes of n of them in a row, as both detectors compare texts."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt64

from limpid.config import DataConfig
from limpid.data.documents import Corpus, is_tokenized
from limpid.data.formats import Chunk
from limpid.errors import DataError
from limpid.files import user_path
from limpid.reporter import Reporter

Array = np.ndarray
ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Characters of scripts that put no blank between words: each is a word."""
WORD = re.compile(f"[{ALONE}]|[^\\W_{ALONE}]+")
IN_WORD = re.compile(f"[^\\W_{ALONE}]")
LONGEST = 1 << 10
"""Characters of a word that is held together where a text is read in parts."""
REMEMBERED = 1 << 20
"""Words whose hashes are kept at most."""
BASE = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that no word of an n-gram is lost modulo 2^64."""


@dataclass(frozen=True)
class Block:
    """Part of a document: its words, and what of the part before is needed for n-grams across the border."""

    chunk: Chunk
    text: str
    before: tuple[str, ...]  # words of earlier blocks, at most n - 1
    offset: int  # characters of the document before `text`
    word_offset: int  # words of the document before `before`

    @property
    def words(self) -> list[str]:
        """Words in order, with those before."""
        return [*self.before, *words_of(self.text)]

    def place(self, number: int) -> int:
        """At which character of the document a word of this block begins; of those before, where the text does."""
        number -= len(self.before)
        if number < 0:
            return self.offset
        return self.offset + next(itertools.islice(WORD.finditer(self.text), number, None)).start()


def words_of(text: str) -> list[str]:
    """Words in small letters, without punctuation, marks or blanks."""
    return list(map(str.lower, WORD.findall(text)))


def blocks_of(chunks: Iterator[Chunk], overlap: int) -> Iterator[Block]:
    """The documents in blocks of whole words, each with the last `overlap` words before it."""
    before: tuple[str, ...] = ()
    rest, offset, number = "", 0, 0
    for chunk in chunks:
        text = rest + chunk.text
        cut = len(text)
        while not chunk.last and len(text) - cut < LONGEST and IN_WORD.match(text[cut - 1 : cut]):
            cut -= 1  # this word may go on in the next part
        here, rest = text[:cut], text[cut:]
        block = Block(chunk, here, before, offset, number)
        yield block
        if chunk.last:
            rest, before, offset, number = "", (), 0, 0
        else:
            words = block.words
            kept = min(overlap, len(words))
            before, number = tuple(words[len(words) - kept :]), number + len(words) - kept
            offset += len(here)


class NGrams:
    """Hashes of words and of n-grams: the same in every process, kept from text to text."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def words(self, words: Sequence[str]) -> UInt64[Array, " word"]:
        """A hash of each word."""
        if len(self._known) > REMEMBERED:
            self._known.clear()
        known = self._known
        for word in set(words).difference(known):
            known[word] = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        return np.fromiter(map(known.__getitem__, words), np.uint64, len(words))

    def of(self, words: UInt64[Array, " word"], n: int) -> UInt64[Array, " gram"]:
        """A hash of every n words in a row: a polynomial in their hashes modulo 2^64."""
        count = max(0, len(words) - n + 1)
        found = np.zeros(count, np.uint64)
        for k in range(n):
            found = found * BASE + words[k : k + count]
        return found


def text_corpus(paths: Sequence[str], text_field: str, leave_out: str | None = None) -> Corpus:
    """The corpus of some paths; raises DataError for a folder of tokens, which holds no text."""
    for path in paths:
        if path != "-" and not path.startswith("hf:") and is_tokenized(user_path(path)):
            raise DataError(f"{path} holds tokens: give the text that they were made of")
    return Corpus(DataConfig(paths=tuple(paths), text_field=text_field, leave_out=leave_out))


class Reading:
    """Chunks of a corpus, and how many of its bytes were read, shown as they pass."""

    def __init__(self, corpus: Corpus, reporter: Reporter, what: str) -> None:
        self.corpus, self.reporter, self.what = corpus, reporter, what
        sizes = [source.path.stat().st_size for source in corpus.sources if source.path is not None]
        self.total = sum(sizes) or None

    def __iter__(self) -> Iterator[Chunk]:
        read = since = 0
        for chunk in self.corpus.chunks():
            yield chunk
            since += len(chunk.text)
            if since > 1 << 20:
                read, since = read + since, 0
                self.reporter.progress(self.what, min(read, self.total or read), self.total)
