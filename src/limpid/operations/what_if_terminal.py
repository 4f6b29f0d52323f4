"""What other formats would do to the loss, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING

from rich.text import Text

from limpid.columns import Cell, Columns
from limpid.console import Console
from limpid.operations.what_if_document import WITHIN
from limpid.terminal import counted
from limpid.theme import FAULT, GOOD, HEADING, QUIET, WARNING

if TYPE_CHECKING:
    from limpid.operations.what_if import Predicted, Row, WhatIf

SHORT = {"float8_e4m3fn": "fp8", "bfloat16": "bf16", "float16": "fp16", "float8_e5m2": "e5m2"}
ROWS, PARTS = 24, 8


def lines(found: WhatIf, *, within: float = WITHIN, everything: bool = False) -> Iterator[Text | Columns]:
    """What was asked, foretold and tried; then every module by itself.

    within      a share of the loss
    everything  all modules
    """
    asked = ", ".join(f"{pattern} in {form}" for pattern, form in found.asked.items())
    told = found.predicted
    yield Text.assemble((f"what if {asked}", HEADING), f": {counted(told.calls, 'call')} of the forward pass")
    yield Text.assemble(("foretold", HEADING), f"   {said_of(told)}")
    yield from _parts(found)
    mark = ("✓ ", GOOD) if found.holds else ("✗ beyond that: ", FAULT)
    yield Text.assemble(
        ("tried", HEADING), "      ", mark, f"{found.tried:+.3g}: the loss is {found.loss + found.tried:.6f} "
        f"in the place of {found.loss:.6f}",
    )  # fmt: skip
    if found.rows:
        yield from _by_module(found, within, everything)


def _parts(found: WhatIf) -> Iterator[Text]:
    """Of several parts, which adds what."""
    parts = sorted(found.parts, key=lambda one: -abs(one.adds))
    if len(parts) > 1 and found.predicted.size:
        for one in parts[:PARTS]:
            yield Text.assemble(f"           {one.adds:+.3g}", (f"  {one.module} in {short(one.format)}", QUIET))
        rest = parts[PARTS:]
        if rest:
            yield Text(f"           {sum(one.adds for one in rest):+.3g}  {counted(len(rest), 'more')}", QUIET)


def _by_module(found: WhatIf, within: float, everything: bool) -> Iterator[Text | Columns]:
    most = within * abs(found.loss)
    yield Text()
    yield Text(f"each module by itself; narrowest: the format of fewest bits that moves the loss by {most:.2g} at "
               f"most, {100 * within:g}% of it", QUIET)  # fmt: skip
    rows = [row for row in found.rows if any(one.size for one in row.formats.values())]
    shown = rows if everything else rows[:ROWS]
    heads = ("module", *map(short, found.rows[0].formats), "narrowest")
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


def short(form: str) -> str:
    """How a format is called in a table."""
    return SHORT.get(form, form)


def said_of(told: Predicted) -> str:
    """A change that is foretold, in words."""
    if not told.size:
        return "nothing changes: no operation there is rounded by that format"
    if told.is_value:
        return f"{told.change:+.3g}"
    return f"{told.at_most:.2g} at most; {told.change:+.2g} ± {told.deviation:.2g}"


def _row(row: Row, most: float) -> list[Cell]:
    narrowest = row.narrowest(most)
    last = Text(short(narrowest), GOOD) if narrowest else Text("stays", WARNING)
    return [row.module, *map(cell, row.formats.values()), last]


def cell(told: Predicted) -> str:
    """The same in a few signs."""
    if not told.size:
        return "–"
    return f"{told.change:+.1e}" if told.is_value else f"≤ {told.at_most:.1e}"
