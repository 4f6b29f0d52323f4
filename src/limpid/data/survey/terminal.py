"""What a corpus holds, repeats and shares with tests, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from limpid.data.survey.decontaminate import Decontamination
from limpid.data.survey.duplicates import Duplicates, Pair
from limpid.data.survey.statistics import Statistics
from limpid.terminal import counted
from limpid.theme import QUIET

MOST = 10
"""Pairs and rows that are shown; --json has all."""


def statistics_lines(found: Statistics) -> Iterator[RenderableType]:
    """Counts, lengths, tokens."""
    yield f"documents      {found.documents:,}{_share(found.repeated_documents, found.documents)}"
    if found.lines is not None and found.repeated_lines is not None:
        yield f"lines          {found.lines:,} that are not blank{_share(found.repeated_lines, found.lines)}"
        yield f"characters     {found.characters:,}"
    yield f"bytes          {found.bytes:,}"
    yield f"tokens         {found.tokens:,}, {found.bytes_per_token:.3f} bytes each"
    yield f"vocabulary     {found.vocab_size:,}, of which {found.never:,} never occur"
    table = _table("a document has", *(_quantile(share) for share in found.tokens_per_document))
    for what, quantiles in (
        ("characters", found.characters_per_document),
        ("bytes", found.bytes_per_document),
        ("tokens", found.tokens_per_document),
    ):
        if quantiles is not None:
            table.add_row(what, *(f"{length:,}" for length in quantiles.values()))
    yield table
    frequent = _table("most frequent", "times", "share")
    for token, times in found.frequent:
        frequent.add_row(Text(f"'{token}'"), f"{times:,}", f"{times / found.tokens:.2%}")
    yield frequent
    if found.never:
        more = " …" if found.never > len(found.never_named) else ""
        yield f"never          {' '.join(found.never_named)}{more}"
    yield from found.notes


def duplicates_lines(found: Duplicates) -> Iterator[RenderableType]:
    """How many documents are there twice, and which pairs are nearly alike."""
    share = found.characters_left_out / max(1, found.characters)
    yield f"documents      {found.documents:,}"
    yield f"equal          {found.documents and len(found.exact):,} to an earlier one"
    yield (
        f"nearly         {counted(len(found.near), 'pair')} with {found.threshold:g} of their {found.ngram}-grams of "
        f"words in common; {found.measured:,} were measured"
    )
    yield f"               a pair just so alike is found with probability {found.recall:.3f}"
    yield f"to leave out   {len(found.left_out):,}, {share:.1%} of the text"
    for name, pairs in (("equal", found.exact), ("nearly equal", found.near)):
        if pairs:
            yield _pairs(name, pairs)
    yield from found.notes


def decontamination_lines(found: Decontamination) -> Iterator[RenderableType]:
    """Which test rows were found, and where."""
    rows = found.contaminated
    yield f"test rows      {len(found.rows):,} of {found.ngram} words or more, {found.too_short:,} shorter"
    yield f"found          {len(rows):,}, which share {found.ngram} words in a row with the corpus"
    yield f"documents      {found.read:,}, of which {len(found.documents):,} hold some"
    if rows:
        table = _table("test row", "share", "words", "corpus", "character", "begins", right=(1, 2, 4))
        for row in rows[:MOST]:
            place = row.places[0]
            table.add_row(
                Text(row.name), f"{found.share(row):.0%}", f"{place.words:,}", Text(place.document),
                f"{place.character:,}", Text(place.text),
            )  # fmt: skip
        yield table
        if len(rows) > MOST:
            yield f"and {len(rows) - MOST:,} more rows: --json names all"
    yield from found.notes


def _pairs(name: str, pairs: tuple[Pair, ...]) -> Table:
    table = _table(name, "like", "Jaccard", right=(2,))
    for pair in sorted(pairs, key=lambda pair: -pair.jaccard)[:MOST]:
        table.add_row(Text(pair.document), Text(pair.like), f"{pair.jaccard:.3f}")
    if len(pairs) > MOST:
        table.add_row(f"and {len(pairs) - MOST:,} more: --json names all")
    return table


def _table(first: str, *others: str, right: tuple[int, ...] | None = None) -> Table:
    table = Table(box=None, pad_edge=False, header_style=QUIET)
    table.add_column(first, overflow="fold")
    for number, other in enumerate(others, 1):
        on_the_right = right is None or number in right
        table.add_column(other, justify="right" if on_the_right else "left", no_wrap=on_the_right, overflow="fold")
    return table


def _quantile(share: str) -> str:
    return {"0": "least", "0.5": "median", "1": "most"}.get(share, f"{float(share):.0%}")


def _share(repeated: int, total: int) -> str:
    return f", {repeated:,} of them ({repeated / max(1, total):.1%}) equal to an earlier one" if repeated else ""
