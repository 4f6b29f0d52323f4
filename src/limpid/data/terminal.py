"""What a run is trained on, and the rows of a step, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from limpid.config import DataConfig
from limpid.data.documents import STANDARD_INPUT, STANDARD_TEXT
from limpid.data.lineage import Part, StepRows
from limpid.data.token_splits import Counts, Tokens
from limpid.terminal import command, counted
from limpid.theme import QUIET

if TYPE_CHECKING:
    from limpid.data.shards.make import Tokenized

MOST = 12
"""Paths that are shown by themselves; of more, the largest."""
WIDEST = 36
"""Characters of a name that are shown."""


def data_table(tokens: Tokens, data: DataConfig) -> Table:
    """What each path brought to train on, its share (of the tokens, or as it was weighted), and what is held out."""
    names = [
        STANDARD_INPUT if path == "-" else path for path in (*(data.paths or [STANDARD_TEXT]), *data.validation_paths)
    ]
    train, held_out = tokens.counts
    rows = [(names[path.path], path.train) for path in tokens.paths if path.train.tokens]
    rows = rows or [(", ".join(names[: len(names) - len(data.validation)]), train)]
    weights = data.weights or [counts.tokens for _, counts in rows]
    shares = [weight / sum(weights) for weight in weights]
    order = sorted(range(len(rows)), key=lambda number: -shares[number])
    shown, rest = sorted(order[:MOST]), order[MOST:]
    table = Table(box=None, pad_edge=False, header_style=QUIET)
    table.add_column("trained on", no_wrap=True)
    for column in ("documents", "bytes", "tokens", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    for number in shown:
        name, counts = rows[number]
        table.add_row(_escaped(_short(name)), *_counted(counts), f"{shares[number]:.1%}")
    if rest:
        total = Counts(*map(sum, zip(*(rows[number][1] for number in rest), strict=True)))
        table.add_row(f"{len(rest)} more paths", *_counted(total), f"{sum(shares[number] for number in rest):.1%}")
    if len(rows) > 1:
        table.add_row("together", *_counted(train), "")
    if len(data.validation_sets) > 1:
        for path in tokens.paths:
            if path.held_out.tokens:
                given = data.validation[path.path - (len(names) - len(data.validation))]
                table.add_row(_escaped(_short(f"held out: {given}")), *_counted(path.held_out), "")
    else:
        what = f"held out: {', '.join(data.validation)}" if data.validation else "held out"
        table.add_row(_escaped(_short(what)), *_counted(held_out), "")
    return table


def _where(part: Part) -> str:
    return f"{part.bytes[0]:,} … {part.bytes[1]:,}" if part.bytes else f"from token {part.offset:,}"


def _counted(counts: Counts) -> tuple[str, str, str]:
    return f"{counts.documents:,}", _bytes(counts.bytes), f"{counts.tokens:,}"


def _short(name: str) -> str:
    """A name whose end is kept, so that a row fits 80 columns."""
    return name if len(name) <= WIDEST else f"…{name[1 - WIDEST :]}"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def show_rows(found: StepRows, console: Console) -> None:
    """A line per row and document: where it stands, how much of the row it is, its first words."""
    batches = 1 + max(row.micro_batch for row in found.rows)
    several = f" in {batches} micro-batches" if batches > 1 else ""
    console.print(f"{found.run}, step {found.step}: {len(found.rows)} rows{several}", markup=False)
    table = Table(box=None, pad_edge=False, header_style=QUIET)
    for column in ("row", "bytes", "tokens", "begins"):
        table.add_column(column, justify="left" if column == "begins" else "right", no_wrap=column != "begins")
    table.add_column("document", overflow="fold")
    for row in found.rows:
        number = f"{row.micro_batch}.{row.row}" if batches > 1 else str(row.row)
        for part in row.parts:
            words = repr(part.text)[1:-1]
            table.add_row(number, _where(part), f"{part.tokens:,}", _escaped(words), _escaped(part.document))
            number = ""
    console.print(table)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def tokenized_lines(made: Tokenized) -> Iterator[str]:
    """What a corpus became, and what to type next."""
    new = made.shards - made.kept
    yield f"inputs     {made.inputs:,}, in {counted(made.shards, 'shard')}" + (
        f", {made.kept:,} of them from before" if made.kept else ""
    )
    yield f"documents  {made.documents:,}"
    yield f"text       {_bytes(made.bytes)}"
    yield f"tokens     {made.tokens:,}, {made.bytes / max(1, made.tokens):.2f} bytes each"
    if new:
        yield f"speed      {made.tokens_per_second:,.0f} tokens/s, in {made.seconds:.1f} s"
    yield from made.notes
    yield f"\nnext\n  {command('limpid', 'train', made.path)}"
