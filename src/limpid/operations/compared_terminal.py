"""Two recordings beside each other, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from limpid.columns import Cell, Columns
from limpid.operations.compared_document import ComparedRecordings, Place
from limpid.operations.terminal import operation
from limpid.terminal import counted
from limpid.theme import FAULT, GOOD, HEADING, QUIET, WARNING

SHOWN, ROWS = 6, 16
WORDS = {
    "equal": ("✓ equal to the bit", GOOD),
    "rounding": ("✓ rounding", GOOD),
    "beyond rounding": ("✗ beyond rounding", FAULT),
    "another computation": ("✗ not the same computation", FAULT),
    "another start": ("– not the same start", WARNING),
}
SIDES = {"a": "the first", "b": "the second", "both": "both", "": ""}


def lines(found: ComparedRecordings) -> Iterator[Text | Columns]:
    """The verdict, the first places, what stands on one side alone, how far modules are apart."""
    yield Text.assemble((found.a, HEADING), " against ", (found.b, HEADING))
    said = f"aligned    {found.aligned:,} calls of {found.calls_a:,} and {found.calls_b:,}"
    yield Text(f"{said}; {found.equal:,} gave the same to the bit" if found.aligned else
               f"{said}: compared by what modules give, and gradients", QUIET)  # fmt: skip
    for here, there, count in found.formats[:SHOWN]:
        yield Text(f"formats    {here} against {there} in {counted(count, 'call')}", QUIET)
    word, style = WORDS[found.verdict]
    yield Text.assemble(("verdict", HEADING), "    ", (word, f"bold {style}"), _why(found))
    for number, place in enumerate(found.places[:SHOWN]):
        yield from _place(place, "first" if number == 0 else "")
    if len(found.places) > SHOWN:
        yield Text(f"           and {counted(len(found.places) - SHOWN, 'more place')}", QUIET)
    if found.begins and found.verdict == "rounding":
        yield Text(f"begins     {found.begins}", QUIET)
    for one in found.one_sided[:SHOWN]:
        yield Text.assemble(
            (f"only in {SIDES[one.side]}: {one.calls:,} × {operation(one.operation)}", WARNING),
            f" in {one.module or 'no module'}",
        )
    if len(found.one_sided) > SHOWN:
        yield Text(f"and {counted(len(found.one_sided) - SHOWN, 'more kind')} on one side alone", WARNING)
    rows = list(_rows(found))
    if rows:
        yield Text()
        heads = ("module", "apart: what\nit gives", "its\ngradient")
        yield Columns(heads, rows[:ROWS], right=(1, 2))
        if len(rows) > ROWS:
            yield Text(f"  and {counted(len(rows) - ROWS, 'more module')}: --json has all", QUIET)


def _why(found: ComparedRecordings) -> str:
    match found.verdict:
        case "rounding" if not found.aligned or found.one_sided:
            return ": what differs is no more than the calls before may round"
        case "rounding":
            return ": every call holds on both sides, what differs came in or is rounded"
        case "another start":
            return ": what differs later may come from there"
        case _:
            return ""


def _place(place: Place, label: str) -> Iterator[Text]:
    where = " ".join(filter(None, (place.phase, place.module if place.module != place.name else "", place.source)))
    side = f" in {SIDES[place.side]}" if place.side else ""
    name = operation(place.name) or "the model"
    yield Text.assemble(f"{label:<11}", (f"{place.kind} {name}{side}", f"bold {FAULT}"), f"  {where}")
    if place.said:
        yield Text(f"{'':<11}{place.said}")


def _rows(found: ComparedRecordings) -> Iterator[list[Cell]]:
    """Modules that differ, in their order; as far into them as fits."""
    differing = [one for one in found.modules if one.output or one.gradient]
    depths = sorted({_depth(one.module) for one in differing})
    deepest = max((depth for depth in depths if sum(_depth(o.module) <= depth for o in differing) <= ROWS), default=1)
    for one in differing:
        if _depth(one.module) <= deepest:
            yield [one.module or "(the model)", _number(one.output), _number(one.gradient)]


def _depth(module: str) -> int:
    return len([part for part in module.split(".") if part and not part.isdigit()])


def _number(apart: float | None) -> str:
    return "" if apart is None else "equal" if apart == 0 else f"{apart:.1e}"
