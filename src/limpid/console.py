"""The console that every report is printed on: rich's, with nothing in a text that would command the terminal."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from limpid.terminal import printable

UNLIMITED = 1 << 16
"""Columns of a file or pipe: no table has as many."""
LABEL = re.compile(r" *\S+(?: \S+)*  +(?=\S)")
"""What a line begins with where its text stands in a column: continuations stand there too."""
INDENT = 2
"""Columns by which a line's continuation stands further in than its beginning."""
NARROWEST = 24
"""Columns that continuations keep, however far in a line begins."""
LEAST = 10
"""Columns of the screen that a column of a table keeps when it gives way, or all that it has."""


class Console(RichConsole):
    """Colours and tables as rich makes them; words are not coloured by what they look like.

    On a terminal, text that is too long for a line goes on below, a little further in, and no number of a table is cut.
    In a file or a pipe every line stays whole, tables are as wide as they are, and nothing moves, even where
    FORCE_COLOR asks for colours.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, **options})
        forced = options.get("force_terminal")
        self.in_columns = self.file.isatty() if forced is None else bool(forced)
        """Whether somebody looks on, at lines of so many columns."""
        if not self.in_columns:
            self.is_interactive = False
            if options.get("width") is None:
                self.width = UNLIMITED

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich prints; text is wrapped at words on a terminal, and left on its line everywhere else."""
        if len(objects) == 1 and isinstance(objects[0], str | Text):
            text = objects[0]
            if isinstance(text, str):
                text = self.render_str(text, markup=options.get("markup"), highlight=bool(options.get("highlight")))
            objects = (hanging(text, self) if self.in_columns else text,)
            options["soft_wrap"] = True
        else:
            objects = tuple(one if isinstance(one, str | Text) else Trimmed(one) for one in objects)
            options["crop"] = False  # what a table cannot spare goes on in the terminal's next line
        super().print(*objects, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of what is printed: all but rich's own control codes is text."""
        if isinstance(renderable, Table):
            renderable = fitted(renderable, self, (options or self.options).max_width)
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(printable(piece.text), piece.style)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, as printing does: rich ends the whole process here, whatever it was at.

        What lies in the file's buffer goes nowhere, so that ending does not fail on it.
        """
        with contextlib.suppress(OSError):  # no descriptor: a file made in Python
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@dataclass(frozen=True)
class Trimmed:
    """A table or a group without the blanks that fill up its lines."""

    content: Any

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        for line in Segment.split_lines(console.render(self.content, options)):
            while line and not line[-1].text.strip(" "):
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(" "), line[-1].style)
            yield from (*line, Segment.line())


def fitted(table: Table, console: RichConsole, width: int) -> Table:
    """The table no wider than `width`, or than it can be: words are wrapped, then names cut; numbers stay whole.

    rich makes all columns narrower by the same, and so cuts numbers where they still look like numbers.
    """
    unlimited = console.options.update(width=UNLIMITED)
    over = Measurement.get(console, unlimited, table).maximum - width
    if over <= 0:
        return table
    sizes = [_size(column, table.show_header, console, unlimited) for column in table.columns]
    wide = [size.maximum for size in sizes]
    wraps = [place for place, column in enumerate(table.columns) if column.width is None and not column.no_wrap]
    names = [i for i, column in enumerate(table.columns) if column.no_wrap and column.justify == "left"]
    least = [min(size.minimum if place in wraps else size.maximum, LEAST) for place, size in enumerate(sizes)]
    for places in (wraps, names):
        while over > 0 and (able := [place for place in places if wide[place] > least[place]]):
            wide[max(able, key=wide.__getitem__)] -= 1
            over -= 1
    narrow = copy(table)
    narrow.width = width + over
    narrow.columns = [
        replace(column, width=size, overflow=column.overflow if column.no_wrap else "fold")
        for column, size in zip(table.columns, wide, strict=True)
    ]
    return narrow


def _size(column: Column, with_header: bool, console: RichConsole, options: ConsoleOptions) -> Measurement:
    """The longest word of a column, and its longest cell."""
    if column.width is not None:
        return Measurement(column.width, column.width)
    cells = [*([column.header] if with_header else []), *column.cells]
    measured = [Measurement.get(console, options, cell) for cell in cells]
    return Measurement(
        max((one.minimum for one in measured), default=0), max((one.maximum for one in measured), default=0)
    )


def hanging(text: Text, console: RichConsole) -> Text:
    """The text broken at words where a line is wider than the console; what follows a break stands further in."""
    lines, width = [], console.width
    for line in text.split("\n", allow_blank=True):
        line.expand_tabs()
        if line.cell_len <= width:
            lines.append(line)
            continue
        begins = len(line.plain) - len(line.plain.lstrip(" "))
        label = LABEL.match(line.plain)
        further = label.end() if label and label.end() <= width // 3 else begins + INDENT
        indent = min(further, max(0, width - NARROWEST))
        line = Text(" " * min(begins, indent)) + line[begins:]
        first = line.wrap(console, width)[0]
        rest = line[len(first.plain) :]
        rest = rest[len(rest.plain) - len(rest.plain.lstrip(" ")) :]
        parts = [first, *(Text(" " * indent) + part for part in rest.wrap(console, width - indent))]
        for part in parts:
            part.rstrip()
        lines += parts if rest.plain else parts[:1]
    return Text("\n", end=text.end).join(lines)
