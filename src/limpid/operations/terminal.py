"""A recorded step in the terminal: how much was checked, what is wrong, which module made what of the loss's error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from rich.text import Text

from limpid.columns import Cell, Columns
from limpid.operations.call import ILL
from limpid.operations.document import CallDocument, GradientDocument, RecordingDocument
from limpid.operations.modules import ModuleDocument
from limpid.terminal import counted
from limpid.theme import BACKWARD, FAULT, FORWARD, GOOD, HEADING, QUIET, UPDATE, WARNING

SHOWN = 8
"""Calls of a list."""
BRIEF_DEPTH, BRIEF_ROWS = 3, 12
OTHER = "compiled otherwise"
ADJOINTS = ("not the adjoint", "holds", "surrogate", "not checked")
PHASES = {"forward": FORWARD, "backward": BACKWARD, "update": UPDATE}
LEAST = 1e-3
"""Of the largest share of the loss's error: modules below it and near no bound are summed up in one row."""


def lines(step: RecordingDocument, *, brief: bool = False, everything: bool = False) -> Iterator[Text | Columns]:
    """What is printed, from what matters most on.

    brief       on one screen
    everything  no module folded into those that are alike
    """
    yield from _head(step)
    yield from _ended(step)
    yield from _wrong(step, 2 if brief else SHOWN)
    yield from _adjoints(step, 2 if brief else SHOWN)
    yield from _unchecked(step, 2 if brief else SHOWN)
    tree = step.modules if everything else step.folded
    rows = list(_rows(tree, 0, BRIEF_DEPTH if brief else 99))
    more = len(rows) - BRIEF_ROWS if brief else 0
    yield Text()
    heads = ("module", "calls", "worst\n/ bound", "moved the\nloss by")
    yield Columns(heads, rows[:BRIEF_ROWS] if more > 0 else rows, right=(1, 2, 3))
    if more > 0:
        yield Text(f"  and {counted(more, 'more row')}: leave out --brief", QUIET)
    yield from _account(step, 3 if brief else SHOWN)
    for one in step.gradients:
        yield from _gradient(step, one, 3 if brief else SHOWN)
    yield from _amplifying(step, 2 if brief else SHOWN)


def _head(step: RecordingDocument) -> Iterator[Text]:
    yield Text.assemble((step.title, HEADING), f" · {step.parameters:,} parameters" if step.parameters else "")
    if step.fed:
        yield Text(f"fed        {step.fed}", QUIET)
    whole = step.checked_calls == step.arithmetic_calls
    yield Text.assemble(
        ("checked", HEADING), "    ",
        (f"{_percent(step.checked)} of the arithmetic", f"bold {GOOD if whole else WARNING}"),
        f", {step.checked_calls:,} of {step.arithmetic_calls:,} calls; {step.moved_calls:,} more move data, "
        f"{step.drawn_calls:,} draw or reserve",
    )  # fmt: skip
    yield from _regions(step)
    yield Text.assemble(("verdict", HEADING), "    ", *_verdict(step))
    if step.loss is not None:
        moved = f", which rounding moved by {step.error:+.2g}" if step.error else ""
        yield Text.assemble(("loss", f"bold {FORWARD}"), f"       {step.loss:.6f}{moved}")


def _regions(step: RecordingDocument) -> Iterator[Text]:
    """That compiled code ran as it was written, and which of it was held against that."""
    if not step.regions:
        return
    held = sum(one.verdict == "holds" for one in step.regions)
    whole = held == len(step.regions)
    yield Text.assemble(
        ("compiled", HEADING), "   ",
        (f"{held:,} of {counted(len(step.regions), 'region')}", f"bold {GOOD if whole else WARNING}"),
        " held against the code as written, which ran in their place",
    )  # fmt: skip
    rest = [one for one in step.regions if one.verdict != "holds"]
    for one in rest[:SHOWN]:
        mark, style = ("✗", f"bold {FAULT}") if one.verdict == OTHER else ("–", WARNING)
        yield Text.assemble(
            (f"  {mark} {one.name}", style), f" {one.module or 'outside of modules'}", (f"  {one.source}", QUIET)
        )
        yield Text(f"      {one.said}")
    if len(rest) > SHOWN:
        yield Text(f"  and {len(rest) - SHOWN:,} more", QUIET)


def _verdict(step: RecordingDocument) -> Iterator[tuple[str, str] | str]:
    if step.verdict == "beyond rounding":
        yield (f"✗ beyond rounding: {counted(len(step.wrong), 'call')}", f"bold {FAULT}")
        yield ", the first of them below"
    elif step.verdict == "not the adjoint":
        wrong = sum(one.verdict == "not the adjoint" for one in step.adjoints)
        yield (f"✗ not the adjoint: {counted(wrong, 'custom Function')}", f"bold {FAULT}")
        yield "; every call that was checked is within rounding"
    elif step.verdict == "compiled otherwise":
        yield (
            f"✗ compiled otherwise: {counted(sum(one.verdict == OTHER for one in step.regions), 'region')}",
            f"bold {FAULT}",
        )
        yield "; every call that was checked, as written, is within rounding"
    elif step.verdict == "not finite":
        yield ("✗ not finite", f"bold {FAULT}")
        yield f": {step.where}; what each call was given explains what it made"
    elif step.verdict == "not checked":
        yield ("– not checked", f"bold {WARNING}")
        yield f": {step.where}"
    else:
        yield ("✓ within rounding", f"bold {GOOD}")
        said = "everything that was checked" if step.unchecked else "every call"
        nearest = None if step.nearest is None else step.calls[step.nearest]
        share = (
            "" if nearest is None or nearest.worst is None else f", the nearest {nearest.worst.share:.2f} of its bound"
        )
        yield f": {said}{share}"


def _ended(step: RecordingDocument) -> Iterator[Text]:
    """The calls that made the first infinity, and the first nan."""
    for number in step.origins:
        call = step.calls[number]
        made = "infinities of finite numbers" if call.ended == "inf" else "nan of numbers"
        yield Text.assemble(*_standing(call))
        yield Text(f"      the first to make {made}")


def _wrong(step: RecordingDocument, shown: int) -> Iterator[Text]:
    for number in step.wrong[:shown]:
        yield from _call(step.calls[number])
    if len(step.wrong) > shown:
        yield Text(f"  and {len(step.wrong) - shown:,} more", QUIET)


def _adjoints(step: RecordingDocument, shown: int) -> Iterator[Text]:
    """Backward passes by hand: those that are wrong, then how many are not, or are meant to be another gradient."""
    of = {verdict: [one for one in step.adjoints if one.verdict == verdict] for verdict in ADJOINTS}
    for one in of["not the adjoint"][:shown]:
        yield Text.assemble((f"  ✗ {one.function}", f"bold {FAULT}"), f" {one.module or 'outside of modules'}",
                            (f"  {one.source}", QUIET))  # fmt: skip
        yield Text(f"      {one.said}")
    if len(of["not the adjoint"]) > shown:
        yield Text(f"  and {len(of['not the adjoint']) - shown:,} more", QUIET)
    if of["holds"]:
        yield Text.assemble(("  ✓ ", GOOD), f"{counted(len(of['holds']), 'call')} of custom Functions: backward is the "
                                            "adjoint of forward")  # fmt: skip
    for verdict in ("surrogate", "not checked"):
        for said, count in list(Counter((one.function, one.said) for one in of[verdict]).items())[:shown]:
            yield Text.assemble((f"  – {count:,} × {said[0]}", WARNING), f": {said[1]}")


def _call(call: CallDocument) -> Iterator[Text]:
    """A call that is wrong: where it stands, then its worst entry."""
    yield Text.assemble(*_standing(call))
    worst = call.worst
    if worst is not None:
        of = f"result {worst.output} at " if worst.output else "at "
        yield Text(
            f"      {of}{list(worst.index)}: {worst.engine:.9g}, expected {worst.expected:.9g} ± {worst.bound:.2g} "
            f"({worst.share:.3g} of the bound)"
        )


def _standing(call: CallDocument) -> Iterator[tuple[str, str] | str]:
    """A call and where it stands."""
    yield (f"  ✗ {operation(call.operation)}", f"bold {FAULT}")
    yield f" {call.format}{list(call.shapes[0]) if call.shapes else ''} "
    yield (call.phase, PHASES.get(call.phase, ""))
    yield f" {call.module or 'outside of modules'}"
    yield (f"  {call.source}", QUIET)


def _unchecked(step: RecordingDocument, shown: int) -> Iterator[Text]:
    for one in step.unchecked[:shown]:
        yield Text.assemble((f"  – {one.calls:,} × {operation(one.operation)} not checked", WARNING), f": {one.why}")
    if len(step.unchecked) > shown:
        yield Text(f"  and {counted(len(step.unchecked) - shown, 'operation')} more not checked", WARNING)


def _rows(module: ModuleDocument, depth: int, deepest: int) -> Iterator[list[Cell]]:
    """The parts of a module, each with its own below it."""
    for part in module.modules:
        part, name = _chain(part)
        alike = f"  {part.alike} alike" if part.alike > 1 else ""
        label = Text.assemble("  " * depth, (name, HEADING if part.modules else ""), (alike, QUIET))
        yield [label, f"{part.calls:,}", _share(part), f"{part.error:+.1e}" if part.error else ""]
        if depth + 1 < deepest:
            yield from _rows(part, depth + 1, deepest)


def _chain(part: ModuleDocument) -> tuple[ModuleDocument, str]:
    """A module with one part and no calls of its own on one line with it: model.layers."""
    name = part.name
    while len(part.modules) == 1 and part.modules[0].calls == part.calls and part.alike == 1:
        part = part.modules[0]
        name = f"{name}.{part.name}"
    return part, name


def _share(part: ModuleDocument) -> Text:
    if part.wrong:
        return Text(f"✗ {part.share:.3g}", f"bold {FAULT}")
    if part.unchecked:
        return Text(f"– {part.unchecked} not checked", WARNING)
    if part.share is None:
        return Text("moved", QUIET)
    return Text(f"✓ {part.share:.2f}" if part.share else "✓ equal", GOOD)


def _account(step: RecordingDocument, shown: int) -> Iterator[Text | Columns]:
    added = [(call, call.error) for call in step.calls if call.error]
    if added:
        yield Text.assemble(("\nwho moved the loss", HEADING), (", to first order", QUIET))
        yield _movers(added, shown)


def _gradient(step: RecordingDocument, found: GradientDocument, shown: int) -> Iterator[Text | Columns]:
    """Who moved a number of the gradient, and by how much in all, beside what is measured."""
    yield Text.assemble((f"\nwho moved {found.of}", HEADING), (", to first order", QUIET))
    said = f"{found.engine:.6g}, moved by {found.error:+.2e}"
    if found.exact is not None:
        measured = found.engine - found.exact
        said += f"; against float64 {measured:+.2e}, left over {measured - found.error - found.beyond:+.1e}"
    yield Text(said)
    if found.beyond:
        yield Text(
            f"beyond first order {found.beyond:+.2e}, by curvature, kinks and choices: {', '.join(found.bent)}", QUIET
        )
    if found.cancels:
        yield Text(
            "contributions cancel: what is beyond the first order may be as large as what is left of them", QUIET
        )
    if found.unknown:
        yield Text(f"  – {counted(found.unknown, 'call')} could not be followed: what they add is missing", WARNING)
    added = [(step.calls[number], error) for number, error in zip(found.calls, found.errors, strict=True)]
    if added:
        yield _movers(added, shown)


def _movers(added: list[tuple[CallDocument, float]], shown: int) -> Columns:
    """Calls by the size of what they add, and where they stand."""
    rows: list[list[Cell]] = [
        [f"{error:+.2e}", operation(call.operation), call.format, Text(call.phase, PHASES.get(call.phase, "")),
         Text(call.module or "outside of modules", QUIET)]
        for call, error in sorted(added, key=lambda one: -abs(one[1]))[:shown]
    ]  # fmt: skip
    return Columns(("by", "operation", "format", "phase", "module"), rows, right=(0,))


def _amplifying(step: RecordingDocument, shown: int) -> Iterator[Text | Columns]:
    """Calls that lose digits of what came in."""
    found = sorted((one for one in step.calls if one.condition >= ILL), key=lambda one: -one.condition)
    if not found:
        return
    yield Text.assemble(("\nbadly conditioned", HEADING), (", on the data of this step", QUIET))
    rows: list[list[Cell]] = [
        [f"× {one.condition:.3g}", f"{math.log10(one.condition):.0f}", operation(one.operation), one.format,
         Text(one.module or "outside of modules", QUIET)]
        for one in found[:shown]
    ]  # fmt: skip
    yield Columns(("amplifies\nwhat came in", "digits\nlost", "operation", "format", "module"), rows, right=(0, 1))
    if len(found) > shown:
        yield Text(f"  and {counted(len(found) - shown, 'call')} more", QUIET)


def operation(name: str) -> str:
    """addmm of aten.addmm.default, add.Tensor where there are several of a name."""
    return name.removeprefix("aten.").removesuffix(".default")


def _percent(share: float) -> str:
    """Never 100 where something is missing."""
    return "100%" if share == 1 else f"{min(100 * share, 99.99):.2f}%"
