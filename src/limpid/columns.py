"""A table that says where it is cut: its last column gives way where the screen is narrow, then its first, with …."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from limpid.console import LEAST
from limpid.theme import QUIET

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Cell = str | Text
GAP = 2
"""Columns of the screen between two of the table."""


@dataclass(frozen=True)
class Columns:
    """A table without lines; the columns numbered in `right` are aligned to the right, as numbers are."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    right: Sequence[int] = ()

    def widths(self, screen: int) -> list[int]:
        """How wide each column is on a screen of so many columns."""
        wanted = [max(map(_width, (head, *(row[i] for row in self.rows)))) for i, head in enumerate(self.heads)]
        over = sum(wanted) + GAP * (len(wanted) - 1) - screen
        for place in (-1, 0):
            given_up = max(0, min(over, wanted[place] - LEAST))
            wanted[place], over = wanted[place] - given_up, over - given_up
        return wanted

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, pad_edge=False, header_style=QUIET, padding=(0, GAP, 0, 0), show_header=any(self.heads))
        for place, (head, width) in enumerate(zip(self.heads, self.widths(options.max_width), strict=True)):
            table.add_column(
                head, justify="right" if place in self.right else "left", width=width, no_wrap=True,
                overflow="ellipsis", vertical="bottom",
            )  # fmt: skip
        for row in self.rows:
            table.add_row(*row)
        yield table


def _width(cell: Cell) -> int:
    text = cell if isinstance(cell, Text) else Text(cell)
    return max((line.cell_len for line in text.split("\n")), default=0)
