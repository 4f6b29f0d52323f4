"""A recorded step, and two compared, as the last line of a notebook cell: tables that fold, no script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.html import folded, table, titled
from limpid.operations.call import ILL
from limpid.operations.document import AdjointDocument, CallDocument, GradientDocument, RecordingDocument
from limpid.operations.modules import ModuleDocument

if TYPE_CHECKING:
    from limpid.operations.compared_document import ComparedRecordings
    from limpid.operations.what_if import WhatIf

SHOWN = 8
"""Rows of a table."""
EM = "\u2003"
"""By which a part stands further in."""


def page(step: RecordingDocument) -> str:
    """Share checked, verdict, what is wrong; modules and who moved the loss, folded."""
    whole = step.checked_calls == step.arithmetic_calls
    facts = [
        ("checked", f"{100 if whole else min(100 * step.checked, 99.99):.4g}% of the arithmetic, "
                    f"{step.checked_calls:,} of {step.arithmetic_calls:,} calls"),
        ("verdict", f"{step.verdict}{': ' if step.where else ''}{step.where}"),
    ]  # fmt: skip
    facts += [("not checked", f"{one.calls} × {one.operation}: {one.why}") for one in step.unchecked[:SHOWN]]
    if step.regions:
        held = sum(one.verdict == "holds" for one in step.regions)
        facts.append(("compiled", f"{held:,} of {len(step.regions):,} regions held against the code as written"))
        facts += [
            (one.name, f"{one.module} {one.source}: {one.said}") for one in step.regions if one.verdict != "holds"
        ]
    facts += [("fed", step.fed)] if step.fed else []
    facts += [("loss", f"{step.loss:.6g}")] if step.loss is not None else []
    facts += [("moved by rounding", f"{step.error:+.3g}")] if step.error else []
    parts = [table(facts)]
    if step.wrong:
        parts.append(table(map(_wrong, (step.calls[number] for number in step.wrong[:SHOWN])),
                           ("call", "where", "engine", "expected", "of its bound"), numbers=(2, 3, 4)))  # fmt: skip
    if step.adjoints:
        told = ((one.function, " ".join(filter(None, (one.module, one.source))), one.said) for one in _told(step))
        parts.append(folded("backward passes by hand", table(told, ("function", "where", "said"))))
    heads = ("module", "calls", "worst / bound", "moved the loss by")
    parts.append(folded("modules", table(_rows(step.folded, 0), heads, numbers=(1, 2, 3))))
    largest = sorted((call for call in step.calls if call.error), key=lambda call: -abs(call.error))[:SHOWN]
    if largest:
        rows = [(f"{call.error:+.3g}", call.operation, call.format, call.module) for call in largest]
        parts.append(folded("who moved the loss", table(rows, ("by", "operation", "format", "module"), numbers=(0,))))
    for one in step.gradients:
        parts.append(folded(f"who moved {one.of}", _gradient(step, one)))
    amplifying = sorted((one for one in step.calls if one.condition >= ILL), key=lambda one: -one.condition)[:SHOWN]
    if amplifying:
        rows = [(f"{call.condition:.3g}", call.operation, call.format, call.module) for call in amplifying]
        heads = ("amplifies what came in by", "operation", "format", "module")
        parts.append(folded("badly conditioned", table(rows, heads, numbers=(0,))))
    return titled(step.title, *parts)


def _gradient(step: RecordingDocument, found: GradientDocument) -> str:
    """By how much, beside what is measured, and the calls that did most of it."""
    facts = [("as the engine has it", f"{found.engine:.6g}"), ("moved by rounding", f"{found.error:+.3g}")]
    facts += [] if found.exact is None else [("measured against float64", f"{found.engine - found.exact:+.3g}")]
    facts += [("beyond first order", f"{found.beyond:+.3g}: {', '.join(found.bent)}")] if found.beyond else []
    facts += [("contributions", "cancel")] if found.cancels else []
    facts += [("could not be followed", f"{found.unknown:,} calls")] if found.unknown else []
    added = sorted(zip(found.errors, found.calls, strict=True), key=lambda one: -abs(one[0]))[:SHOWN]
    rows = [(f"{error:+.3g}", call.operation, call.format, call.phase, call.module)
            for error, call in ((error, step.calls[number]) for error, number in added)]  # fmt: skip
    return table(facts) + table(rows, ("by", "operation", "format", "phase", "module"), numbers=(0,))


def _told(step: RecordingDocument) -> list[AdjointDocument]:
    """Those that are wrong first."""
    return sorted(step.adjoints, key=lambda one: one.verdict != "not the adjoint")[:SHOWN]


def compared_page(found: ComparedRecordings) -> str:
    """The verdict, and the first places that are more than rounding."""
    facts = [("verdict", found.verdict), ("aligned", f"{found.aligned:,} of {found.calls_a:,} and {found.calls_b:,}")]
    rows = [(one.kind, one.name, one.module, one.phase, one.said) for one in found.places[:SHOWN]]
    places = [table(rows, ("what", "name", "module", "phase", "said"))] if rows else []
    return titled(f"{found.a} against {found.b}", table(facts), *places)


def what_if_page(found: WhatIf) -> str:
    """What was asked, foretold and tried; modules by themselves, folded."""
    from limpid.operations.what_if_document import WITHIN
    from limpid.operations.what_if_terminal import cell, said_of, short

    asked = ", ".join(f"{pattern} in {form}" for pattern, form in found.asked.items())
    facts = [
        ("foretold", said_of(found.predicted)),
        ("tried", f"{'' if found.holds else 'beyond that: '}{found.tried:+.3g}"),
        ("loss", f"{found.loss + found.tried:.6g} in the place of {found.loss:.6g}"),
    ]
    parts = [table(facts)]
    if len(found.parts) > 1:
        rows = [(f"{one.adds:+.3g}", one.module, short(one.format)) for one in found.parts]
        parts.append(folded("which part adds what", table(rows, ("adds", "module", "format"), numbers=(0,))))
    if found.rows:
        most = WITHIN * abs(found.loss)
        table_rows = [[row.module, *map(cell, row.formats.values()), short(row.narrowest(most)) or "stays"]
                      for row in found.rows]  # fmt: skip
        heads = ("module", *map(short, found.rows[0].formats), f"narrowest within {100 * WITHIN:g}%")
        parts.append(folded("each module by itself", table(table_rows, heads, numbers=(1, 2, 3))))
    return titled(f"what if {asked}", *parts)


def _wrong(call: CallDocument) -> tuple[str, ...]:
    where = " ".join(filter(None, (call.phase, call.module, call.source)))
    worst = call.worst
    numbers = ("", "", "") if worst is None else (f"{worst.engine:.9g}", f"{worst.expected:.9g}", f"{worst.share:.3g}")
    return (call.operation, where, *numbers)


def _rows(module: ModuleDocument, depth: int) -> Iterator[tuple[str, ...]]:
    for part in module.modules:
        alike = f" ({part.alike} alike)" if part.alike > 1 else ""
        share = f"{part.unchecked} not checked" if part.unchecked else "" if part.share is None else f"{part.share:.2g}"
        yield EM * depth + part.name + alike, f"{part.calls:,}", share, f"{part.error:+.1e}" if part.error else ""
        yield from _rows(part, depth + 1)
