"""Documents that are in a corpus more than once: to the byte, or nearly, by MinHash and then measured."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt64

from limpid.config.arguments import checked
from limpid.config.domain import Count, Similarity
from limpid.data.documents import Corpus
from limpid.data.left_out import write_list
from limpid.data.records import document_name
from limpid.data.survey.ngrams import Block, NGrams, Reading, blocks_of, text_corpus
from limpid.errors import ConfigError, DataError
from limpid.files import user_path
from limpid.reporter import SILENT, Reporter

Array = np.ndarray
PERMUTATIONS = 128
MISSED = 0.99
"""Weight of pairs that are missed against pairs that are looked at in vain, where bands are chosen: each pair that is
looked at is measured, so that the second costs time alone."""
AT_ONCE = 1 << 13
"""N-grams that are permuted together: 8 MB."""


@dataclass(frozen=True)
class Pair:
    """Two documents, in order, and how alike they are."""

    document: str  # absolute place of the later one
    like: str  # of the earlier one
    jaccard: float  # of their sets of n-grams; 1 of equal texts


@dataclass(frozen=True, repr=False)
class Duplicates:
    """What is there more than once."""

    documents: int  # that were read
    threshold: float
    ngram: int
    exact: tuple[Pair, ...]
    near: tuple[Pair, ...]
    left_out: tuple[Pair, ...]  # each document that is like one that is kept, and that one
    measured: int  # pairs that were compared
    recall: float  # probability that a pair just at the threshold is looked at
    characters_left_out: int
    characters: int
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Plain values."""
        plain = asdict(self)
        return plain | {name: list(plain[name]) for name in ("exact", "near", "left_out", "notes")}

    def __repr__(self) -> str:
        return f"<{len(self.left_out):,} of {self.documents:,} documents are like one before them>"


@checked
def duplicates(
    paths: str | Sequence[str],
    *,
    threshold: Similarity = 0.8,
    ngram: Count = 5,
    text_field: str = "text",
    output: str | None = None,
    reporter: Reporter = SILENT,
) -> Duplicates:
    """Find documents that are equal, and pairs whose sets of word n-grams have a Jaccard similarity of `threshold`.

    MinHash with locality-sensitive hashing proposes pairs; each of them is then measured on the whole sets.

    output  file for what to leave out: every document that is like an earlier one which is kept; for --leave-out
    Source  Broder 1997; Lee et al. 2022, arXiv:2107.06499, whose 5-grams and 0.8 these are
    Raises  ConfigError where datasketch is not installed
    """
    given = [paths] if isinstance(paths, str) else list(paths)
    corpus = text_corpus(given, text_field)
    if any(source.spool is not None for source in corpus.sources):
        raise DataError("what comes only once cannot be read twice: put it into a file")
    minhash = MinHash(threshold)
    found = _read(corpus, minhash, ngram, reporter)
    candidates = sorted(minhash.pairs())
    sets = _sets(corpus, {number for pair in candidates for number in pair}, ngram, reporter)
    reporter.close()
    measured = ((one, other, jaccard(sets[one], sets[other])) for one, other in candidates)
    near = [(one, other, alike) for one, other, alike in measured if alike >= threshold]
    exact = [(one, other, 1.0) for other, one in found.equal.items()]
    kept_for = _kept_for(near, exact)
    names = found.names
    result = Duplicates(
        documents=len(names), threshold=threshold, ngram=ngram,
        exact=_pairs(exact, names), near=_pairs(near, names),
        left_out=_pairs(sorted((one, other, alike) for other, (one, alike) in kept_for.items()), names),
        measured=len(candidates), recall=minhash.recall(threshold),
        characters_left_out=sum(found.characters[number] for number in kept_for), characters=sum(found.characters),
        notes=tuple(corpus.notes()),
    )  # fmt: skip
    if output is not None:
        write_list(user_path(output), map(asdict, result.left_out))
    return result


def _pairs(numbers: Iterable[tuple[int, int, float]], names: Sequence[str]) -> tuple[Pair, ...]:
    return tuple(Pair(names[other], names[one], alike) for one, other, alike in numbers)


def _kept_for(
    near: Iterable[tuple[int, int, float]], exact: Iterable[tuple[int, int, float]]
) -> dict[int, tuple[int, float]]:
    """For each document to leave out, an earlier one that is kept and is like it; likeness is not passed on."""
    earlier: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for one, other, alike in near:
        earlier[other].append((one, alike))
    left: dict[int, tuple[int, float]] = {}
    for number in sorted(earlier):
        kept = [(alike, -one) for one, alike in earlier[number] if one not in left]
        if kept:
            alike, one = max(kept)
            left[number] = -one, alike
    for one, other, _ in exact:
        left[other] = left.get(one, (one, 1.0))
    return left


@dataclass(frozen=True)
class Found:
    """What the first reading found."""

    names: list[str]  # places of documents
    characters: list[int]
    equal: dict[int, int]  # documents with the text of an earlier one, and which


def _read(corpus: Corpus, minhash: MinHash, n: int, reporter: Reporter) -> Found:
    """Every document once: its signature, unless an equal one was there before."""
    places = {source.name: str(source.place) for source in corpus.sources}
    names: list[str] = []
    characters: list[int] = []
    equal: dict[int, int] = {}
    first: dict[bytes, int] = {}
    text = hashlib.blake2b(digest_size=16)
    signature, size = minhash.new(), 0
    grams = NGrams()
    for block, found in _grams(Reading(corpus, reporter, "reading the documents"), grams, n):
        text.update(block.text.encode(errors="surrogatepass"))
        size += len(block.text)
        signature.add(found)
        if block.chunk.last:
            number = len(names)
            names.append(document_name(places[block.chunk.source], block.chunk.line))
            characters.append(size)
            before = first.setdefault(text.digest(), number)
            if before != number:
                equal[number] = before
            elif not signature.empty:
                minhash.insert(number, signature)
            text, signature, size = hashlib.blake2b(digest_size=16), minhash.new(), 0
    if not names:
        raise DataError(f"no text in {', '.join(source.name for source in corpus.sources[:3])}: give some")
    return Found(names, characters, equal)


def _sets(corpus: Corpus, numbers: set[int], n: int, reporter: Reporter) -> dict[int, UInt64[Array, " gram"]]:
    """The n-grams of some documents, each once, in order."""
    sets: dict[int, UInt64[Array, " gram"]] = {}
    parts: list[UInt64[Array, " gram"]] = []
    number = 0
    if not numbers:
        return sets
    for block, found in _grams(Reading(corpus, reporter, "measuring pairs"), NGrams(), n, wanted=numbers):
        if number in numbers:
            parts.append(np.unique(found))
        if block.chunk.last:
            if parts:
                sets[number] = np.unique(np.concatenate(parts))
            number, parts = number + 1, []
    return sets


def _grams(
    reading: Reading, grams: NGrams, n: int, wanted: set[int] | None = None
) -> Iterator[tuple[Block, UInt64[Array, " gram"]]]:
    """Blocks of documents with their n-grams; a document of fewer words is one n-gram of them all."""
    number = 0
    for block in blocks_of(iter(reading), n - 1):
        if wanted is None or number in wanted:
            words = block.words
            short = block.chunk.last and block.word_offset == 0 and 0 < len(words) < n
            yield block, grams.of(grams.words(words), len(words) if short else n)
        else:
            yield block, np.empty(0, np.uint64)
        number += block.chunk.last


def jaccard(one: UInt64[Array, " gram"], other: UInt64[Array, " gram2"]) -> float:
    """Share of the n-grams of either that both have; each set is sorted, without repetition."""
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (len(one) + len(other) - both)


class Signature:
    """The MinHash of a document that comes in parts."""

    def __init__(self, minhash: Any) -> None:
        self.minhash, self.empty = minhash, True

    def add(self, grams: UInt64[Array, " gram"]) -> None:
        for at in range(0, len(grams), AT_ONCE):
            self.minhash.update_batch(grams[at : at + AT_ONCE].tolist())
            self.empty = False


class MinHash:
    """datasketch's MinHash and bands of it (Broder 1997; Indyk & Motwani 1998), on hashes of n-grams."""

    def __init__(self, threshold: float) -> None:
        try:
            import datasketch
        except ImportError as error:
            raise ConfigError("near-duplicates need datasketch: pip install 'limpid[dedup]'") from error
        self._empty = datasketch.MinHash(PERMUTATIONS, hashfunc=int, scheme="affine64")
        weights = 1 - MISSED, MISSED
        self._bands = datasketch.MinHashLSH(threshold=min(threshold, 0.999), num_perm=PERMUTATIONS, weights=weights)
        self._found: set[tuple[int, int]] = set()

    def new(self) -> Signature:
        """The signature of nothing yet."""
        return Signature(self._empty.copy())

    def insert(self, number: int, signature: Signature) -> None:
        """Keep a document's signature, and what shares a band with it."""
        self._found.update((before, number) for before in self._bands.query(signature.minhash))
        self._bands.insert(number, signature.minhash, check_duplication=False)

    def pairs(self) -> set[tuple[int, int]]:
        """Pairs that share a band, the earlier document first."""
        return self._found

    def recall(self, similarity: float) -> float:
        """Probability that two documents so alike share a band: 1 - (1 - s^r)^b."""
        bands, rows = self._bands.b, self._bands.r
        return float(1 - (1 - similarity**rows) ** bands)
