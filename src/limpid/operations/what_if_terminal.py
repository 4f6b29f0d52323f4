"""What other formats would do to the loss, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING

from rich.text import Text

from limpid.columns import Cell, Columns
from limpid.console import Console
from limpid.terminal import counted
from limpid.theme import FAULT, GOOD, HEADING, QUIET, WARNING

if TYPE_CHECKING:
    from limpid.operations.what_if import Predicted, Row, WhatIf

SHORT = {"float8_e4m3fn": "fp8", "bfloat16": "bf16", "float16": "fp16"}
WITHIN = 1e-3
"""Of the loss: what a format may move it by, where nothing else is said."""
ROWS = 24


def lines(found: WhatIf, *, within: float = WITHIN, everything: bool = False) -> Iterator[Text | Columns]:
    """What was asked, foretold and tried; then every module by itself.

    within      a share of the loss
    everything  all modules
    """
    asked = ", ".join(f"{pattern} in {form}" for pattern, form in found.asked.items())
    told = found.predicted
    yield Text.assemble((f"what if {asked}", HEADING), f": {counted(told.calls, 'call')} of the forward pass")
    yield Text.assemble(("foretold", HEADING), f"   {_said(told)}")
    mark = ("✓ ", GOOD) if found.holds else ("✗ beyond that: ", FAULT)
    yield Text.assemble(
        ("tried", HEADING), "      ", mark, f"{found.tried:+.3g}: the loss is {found.loss + found.tried:.6f} "
        f"in the place of {found.loss:.6f}",
    )  # fmt: skip
    most = within * abs(found.loss)
    yield Text()
    yield Text(f"each module by itself; narrowest: the format of fewest bits that moves the loss by {most:.2g} at "
               f"most, {100 * within:g}% of it", QUIET)  # fmt: skip
    rows = [row for row in found.rows if any(one.size for one in row.formats.values())]
    shown = rows if everything else rows[:ROWS]
    heads = ("module", *(SHORT[name] for name in SHORT), "narrowest")
    yield Columns(heads, [_row(row, most) for row in shown], right=(1, 2, 3))
    if len(rows) > len(shown):
        yield Text(f"  and {counted(len(rows) - len(shown), 'more module')}: --everything", QUIET)


def said(found: WhatIf) -> str:
    """The same as plain text."""
    text = StringIO()
    console = Console(file=text, width=120)
    for line in lines(found):
        console.print(line)
    return text.getvalue().rstrip()


def _said(told: Predicted) -> str:
    if not told.size:
        return "nothing changes: no operation there is rounded by that format"
    if told.is_value:
        return f"{told.change:+.3g}"
    return f"{told.at_most:.2g} at most; {told.change:+.2g} ± {told.deviation:.2g}"


def _row(row: Row, most: float) -> list[Cell]:
    narrowest = row.narrowest(most)
    last = Text(SHORT[narrowest], GOOD) if narrowest else Text("stays", WARNING)
    return [row.module, *(_cell(row.formats[name]) for name in SHORT), last]


def _cell(told: Predicted) -> str:
    if not told.size:
        return "–"
    return f"{told.change:+.1e}" if told.is_value else f"≤ {told.at_most:.1e}"
