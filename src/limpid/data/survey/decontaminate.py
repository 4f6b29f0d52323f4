"""Which rows of tests stand in a corpus: n words in a row that both have, every one of them, with its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import UInt64

from limpid.config.arguments import checked
from limpid.config.domain import Count
from limpid.data.formats import Record
from limpid.data.left_out import write_list
from limpid.data.records import document_name
from limpid.data.survey.ngrams import Block, NGrams, Reading, blocks_of, text_corpus, words_of
from limpid.errors import DataError
from limpid.files import user_path
from limpid.reporter import SILENT, Reporter

Array = np.ndarray
FEWEST, MOST = 8, 13
"""Words of an n-gram, where they follow from the tests: the 5th percentile of their rows' lengths, within these.
Source: Brown et al. 2020, appendix C, arXiv:2005.14165"""
PERCENTILE = 5
PLACES = 10
"""Overlaps of a row that are kept; all are counted."""
SHOWN = 12
"""Words of an overlap that are shown."""


@dataclass(frozen=True)
class Overlap:
    """Words in a row that a test row and the corpus share."""

    document: str  # of the corpus
    character: int  # where it begins in the document
    word: int  # where it begins in the test row
    words: int  # how many; an overlap across parts of a long document is counted in each
    text: str  # how it begins


@dataclass
class Row:
    """A row of a test, and where it was found."""

    name: str
    words: list[str]
    found: set[int] = field(default_factory=set)  # n-grams that the corpus has
    overlaps: int = 0
    places: list[Overlap] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class Decontamination:
    """What of some tests stands in a corpus."""

    ngram: int
    rows: tuple[Row, ...]  # that could be looked for
    too_short: int  # rows with fewer words than an n-gram
    documents: dict[str, list[str]]  # of the corpus that hold an overlap, by absolute place, with the rows' names
    read: int  # documents of the corpus
    notes: tuple[str, ...]

    @property
    def contaminated(self) -> list[Row]:
        """Rows that share an n-gram with the corpus, those that share most of theirs first."""
        return sorted((row for row in self.rows if row.found), key=lambda row: -self.share(row))

    def share(self, row: Row) -> float:
        """Share of a row's n-grams that the corpus has."""
        return len(row.found) / (len(row.words) - self.ngram + 1)

    def document(self) -> dict[str, Any]:
        """Plain values."""
        rows = [
            {"row": row.name, "words": len(row.words), "share": self.share(row), "overlaps": row.overlaps,
             "places": [asdict(place) for place in row.places]}
            for row in self.contaminated
        ]  # fmt: skip
        return {
            "ngram": self.ngram, "rows": len(self.rows) + self.too_short, "too_short": self.too_short,
            "contaminated": len(rows), "documents_read": self.read, "documents_contaminated": len(self.documents),
            "found": rows, "notes": list(self.notes),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<{len(self.contaminated)} of {len(self.rows)} test rows found in {self.read:,} documents>"


@checked
def decontaminate(
    corpus: str | Sequence[str],
    tests: str | Sequence[str],
    *,
    ngram: Count | None = None,
    text_field: str = "text",
    output: str | None = None,
    reporter: Reporter = SILENT,
) -> Decontamination:
    """Look for rows of tests in a corpus: any n words in a row that both have, without case and punctuation.

    tests   files of records, of which every text counts, or of plain text, of which a line is a row
    ngram   words in a row; when left out the 5th percentile of the rows' lengths, at least 8 and at most 13
    output  file for the documents that hold some, which --leave-out reads
    Source  Brown et al. 2020, appendix C, arXiv:2005.14165
    """
    rows = [Row(name, words_of(text)) for name, text in _test_rows([tests] if isinstance(tests, str) else tests)]
    lengths = [len(row.words) for row in rows if row.words]
    if not lengths:
        raise DataError(f"no words in {tests if isinstance(tests, str) else ', '.join(tests)}: give rows of tests")
    n = ngram or int(np.clip(np.percentile(lengths, PERCENTILE, method="lower"), FEWEST, MOST))
    searched = [row for row in rows if len(row.words) >= n]
    reading = text_corpus([corpus] if isinstance(corpus, str) else corpus, text_field)
    search = Search(searched, n)
    place_of = {source.name: str(source.place) for source in reading.sources}
    documents: dict[str, list[str]] = defaultdict(list)
    read = 0
    for block in blocks_of(iter(Reading(reading, reporter, "looking for the tests")), n - 1):
        read += block.chunk.last
        for name in search.block(block):
            document = document_name(place_of[block.chunk.source], block.chunk.line)
            if name not in documents[document]:
                documents[document].append(name)
    reporter.close()
    if not read:
        raise DataError(f"no text in {corpus if isinstance(corpus, str) else ', '.join(corpus)}: give some")
    if output is not None:
        write_list(user_path(output), ({"document": one, "tests": names} for one, names in documents.items()))
    return Decontamination(n, tuple(searched), len(rows) - len(searched), dict(documents), read,
                           tuple(reading.notes()))  # fmt: skip


class Search:
    """The n-grams of test rows, and whoever has them."""

    def __init__(self, rows: Sequence[Row], n: int) -> None:
        self.rows, self.n, self.ngrams = rows, n, NGrams()
        self.places: dict[int, list[tuple[int, int]]] = defaultdict(list)  # rows and words by hash
        for number, row in enumerate(rows):
            for place, gram in enumerate(self.ngrams.of(self.ngrams.words(row.words), n).tolist()):
                self.places[gram].append((number, place))
        self.sorted: UInt64[Array, " gram"] = np.array(sorted(self.places), np.uint64)

    def block(self, block: Block) -> Iterator[str]:
        """The names of rows that a part of the corpus shares words with; the rows are told where."""
        words = block.words
        grams = self.ngrams.of(self.ngrams.words(words), self.n)
        if not len(grams) or not len(self.sorted):
            return
        nearest = self.sorted[np.minimum(np.searchsorted(self.sorted, grams), len(self.sorted) - 1)]
        runs: dict[tuple[int, int], set[int]] = defaultdict(set)  # places here, by row and how far its words lie off
        for here in np.flatnonzero(nearest == grams).tolist():
            for number, there in self.places[int(grams[here])]:
                if self.rows[number].words[there : there + self.n] == words[here : here + self.n]:
                    runs[number, here - there].add(here)
        for (number, off), heres in runs.items():
            row = self.rows[number]
            row.found.update(here - off for here in heres)
            for start in sorted(here for here in heres if here - 1 not in heres):
                row.overlaps += 1
                if len(row.places) < PLACES:
                    length = next(k for k in range(1, len(heres) + 1) if start + k not in heres) + self.n - 1
                    text = " ".join(words[start : start + min(length, SHOWN)])
                    row.places.append(Overlap(block.chunk.name, block.place(start), start - off, length, text))
            yield row.name


def _test_rows(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Rows of tests with their names: of a record every text in it, of plain text every line."""
    for path in paths:
        reading = text_corpus([path], "text")
        for source in reading.sources:
            part = reading.part([source])
            try:
                records = list(part.records())
            except DataError:
                for chunk in part.chunks():
                    for number, line in enumerate(chunk.text.splitlines(), 1):
                        yield document_name(source.name, chunk.line or number), line
                continue
            for record in records:
                yield record.name, " ".join(_texts(record))


def _texts(record: Record) -> Iterator[str]:
    """Every text in a record, in order."""
    waiting: list[Any] = [record.value]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting = [*value.values(), *waiting]
        elif isinstance(value, list | tuple):
            waiting = [*value, *waiting]
