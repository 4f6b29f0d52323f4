"""A table of which only the last column gives way where the screen is narrow, with … where it is cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from limpid.theme import QUIET

Cell = str | Text


def columns(heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[int] = ()) -> Table:
    """A table without lines; the columns numbered in `right` are aligned to the right, as numbers are."""
    table = Table(box=None, pad_edge=False, header_style=QUIET, padding=(0, 2, 0, 0), show_header=any(heads))
    *fixed, last = range(len(heads))
    for place in fixed:
        width = max((_width(cell) for cell in (heads[place], *(row[place] for row in rows))), default=0)
        justify = "right" if place in right else "left"
        table.add_column(heads[place], justify=justify, no_wrap=True, min_width=width, vertical="bottom")  # type: ignore[arg-type]
    # rich narrows what may be wrapped, and its text decides that it is cut instead
    table.add_column(_on_one_line(heads[last]), justify="right" if last in right else "left", vertical="bottom")
    for row in rows:
        table.add_row(*row[:-1], _on_one_line(row[last]))
    return table


def _on_one_line(cell: Cell) -> Text:
    text = cell.copy() if isinstance(cell, Text) else Text(cell)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _width(cell: Cell) -> int:
    text = cell if isinstance(cell, Text) else Text(cell)
    return max((line.cell_len for line in text.split("\n")), default=0)
