"""The rows of a step for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from limpid.data.lineage import StepRows


def show_rows(found: StepRows, console: Console) -> None:
    """A line per row and document: where it stands, how much of the row it is, its first words."""
    batches = 1 + max(row.micro_batch for row in found.rows)
    several = f" in {batches} micro-batches" if batches > 1 else ""
    console.print(f"{found.run}, step {found.step}: {len(found.rows)} rows{several}", markup=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("row", "from token", "tokens", "begins"):
        table.add_column(column, justify="left" if column == "begins" else "right", no_wrap=column != "begins")
    table.add_column("document", overflow="fold")
    for row in found.rows:
        number = f"{row.micro_batch}.{row.row}" if batches > 1 else str(row.row)
        for part in row.parts:
            words = repr(part.text)[1:-1]
            table.add_row(number, f"{part.offset:,}", f"{part.tokens:,}", _escaped(words), _escaped(part.document))
            number = ""
    console.print(table)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
