"""A recorded step as one document: for JSON, the page, and whoever compares it later. Nothing of it needs torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from limpid.adjoints.adjoint import Adjoint
from limpid.jsonable import from_json
from limpid.operations.call import Call, Cause, Check
from limpid.operations.modules import ModuleDocument, folded, tree
from limpid.operations.region import Region

if TYPE_CHECKING:
    from limpid.operations.report import Report

VERSION = 1
BENT = 3
Verdict = Literal["holds", "beyond rounding", "not the adjoint", "compiled otherwise", "not finite", "not checked"]


@dataclass(frozen=True)
class WorstDocument:
    """The entry of a call's results that is furthest off, by its bound."""

    share: float  # of the bound; more than 1 is more than rounding
    output: int  # which result
    index: tuple[int, ...]
    engine: float
    expected: float
    bound: float


@dataclass(frozen=True)
class CallDocument:
    """One operation that PyTorch was asked for."""

    number: int
    operation: str
    phase: str
    module: str
    source: str  # file:line that asked for it
    shapes: tuple[tuple[int, ...], ...]
    format: str
    arithmetic: int  # additions and multiplications of a product; else entries made
    check: str  # redone, moved, drawn, unchecked
    why: str  # it was not checked
    wrong: bool
    worst: WorstDocument | None
    ended: str  # nan or inf, where it made some of numbers that had none
    error: float  # added to what backward() began at
    condition: float  # by how much it amplifies relative errors of what came in; 0 where not told
    cause: Cause  # of its result's difference from exact arithmetic on exact inputs


@dataclass(frozen=True)
class AdjointDocument:
    """A backward pass by hand, held against its forward pass along random directions: ⟨ȳ, J v⟩ = ⟨x̄, v⟩."""

    number: int  # in the order of the backward pass
    function: str  # a custom Function's name, or another library's operation
    module: str
    source: str  # file:line that called it
    format: str
    shapes: tuple[tuple[int, ...], ...]  # of the inputs that are owed gradients
    verdict: str  # holds, not the adjoint, surrogate, not checked
    said: str  # all of it in words
    of: str  # the input that is furthest off; nothing where none was compared
    given: float | None  # ⟨x̄, v⟩
    expected: float | None  # ⟨ȳ, J v⟩
    bound: float | None  # that they may be apart by
    ratio: float | None  # of the two, where it is the same along all directions


@dataclass(frozen=True)
class RegionDocument:
    """Compiled code, which ran as it was written, and beside as compiled: results and gradients of both."""

    name: str  # class of its module, or function
    module: str
    source: str  # file:line that called it
    calls: int  # the first is compared
    verdict: str  # holds, compiled otherwise, not checked
    said: str  # all of it in words


@dataclass(frozen=True)
class UncheckedDocument:
    """Calls of one operation that were not done again, and why."""

    operation: str
    why: str
    calls: int


@dataclass(frozen=True)
class GradientDocument:
    """By how much rounding moved a number of the gradient, and what each call added."""

    of: str  # grad(NAME), grad(NAME)[i, j] or grad
    engine: float
    exact: float | None  # in float64, where that was asked for
    error: float  # to first order
    beyond: float  # the first order: curvature, kinks, what was chosen otherwise
    bent: tuple[str, ...]  # which operations that is, and in which modules, the largest first
    cancels: bool  # the sum of contributions is less than a fifth of their sizes
    unknown: int  # calls through which it could not be followed
    calls: tuple[int, ...]  # numbers of those that add something
    errors: tuple[float, ...]  # what each of them adds


@dataclass(frozen=True)
class RecordingDocument:
    """A step of any PyTorch model, every call done again in NumPy float64."""

    version: int
    title: str
    fed: str
    loss: float | None
    parameters: int
    verdict: Verdict
    where: str  # what is wrong, or not finite, in words; else nothing
    origins: tuple[int, ...]  # of what is not finite: the first call that made infinities, the first that made nan
    checked: float  # share of the arithmetic that was done again
    checked_calls: int
    arithmetic_calls: int
    moved_calls: int
    drawn_calls: int
    wrong: tuple[int, ...]  # numbers of calls
    nearest: int | None  # number of the call nearest to its bound, or furthest beyond it
    unchecked: tuple[UncheckedDocument, ...]
    error: float  # by which rounding moved what backward() began at, to first order
    modules: ModuleDocument
    folded: ModuleDocument  # the same, those in a row that are alike as one
    calls: tuple[CallDocument, ...]
    adjoints: tuple[AdjointDocument, ...]  # backward passes by hand
    gradients: tuple[GradientDocument, ...]  # numbers of the gradient whose error was asked for
    regions: tuple[RegionDocument, ...]  # compiled


DOCUMENTS = (RecordingDocument,)


def document(report: Report) -> RecordingDocument:
    """All that is known of a recorded step."""
    facts = report.facts
    modules = tree(report.calls)
    checks = Counter(call.check for call in report.calls)
    unchecked = Counter((call.operation, call.why) for call in report.unchecked)
    verdict, where = _verdict(report)
    return RecordingDocument(
        version=VERSION,
        title=facts.title,
        fed=", ".join(facts.fed),
        loss=facts.loss,
        parameters=facts.parameters,
        verdict=verdict,
        where=where,
        origins=_origins(report) if verdict == "not finite" else (),
        checked=report.checked,
        checked_calls=checks[Check.REDONE],
        arithmetic_calls=len(report.arithmetic),
        moved_calls=checks[Check.MOVED],
        drawn_calls=checks[Check.DRAWN],
        wrong=tuple(call.number for call in report.wrong),
        nearest=None if report.worst is None else report.worst.number,
        unchecked=tuple(UncheckedDocument(operation, why, n) for (operation, why), n in unchecked.most_common()),
        error=report.error,
        modules=modules,
        folded=folded(modules),
        calls=tuple(map(call_document, report.calls)),
        adjoints=tuple(map(adjoint_document, report.adjoints)),
        gradients=tuple(_gradient_document(report, of) for of in report.projected),
        regions=tuple(map(region_document, report.regions)),
    )


def _verdict(report: Report) -> tuple[Verdict, str]:
    if report.wrong:
        return "beyond rounding", str(report.wrong[0])
    if report.not_adjoint:
        return "not the adjoint", str(report.not_adjoint[0])
    if report.compiled_otherwise:
        return "compiled otherwise", str(report.compiled_otherwise[0])
    if report.facts.not_finite:
        return "not finite", report.facts.not_finite
    if report.worst is None:
        return "not checked", "nothing that was computed could be done again"
    return "holds", ""


def _origins(report: Report) -> tuple[int, ...]:
    """The first call that made infinities, where one did before the first that made nan, and that."""
    nan = next((call.number for call in report.calls if call.ended == "nan"), None)
    inf = next((call.number for call in report.calls if call.ended == "inf"), None)
    if nan is None or inf is None:
        return tuple(one for one in (inf, nan) if one is not None)
    return (inf, nan) if inf < nan else (nan,)


def call_document(call: Call) -> CallDocument:
    """A call as plain values."""
    worst = call.worst
    return CallDocument(
        call.number, call.operation, call.phase, call.module, call.source, tuple(map(tuple, call.shapes)), call.dtype,
        call.operations, str(call.check), call.why, call.is_wrong,
        None if worst is None else WorstDocument(worst.share, worst.output, worst.place, worst.engine, worst.expected,
                                                 worst.bound),
        call.ended, call.error, call.condition, call.cause,
    )  # fmt: skip


def _gradient_document(report: Report, of: str) -> GradientDocument:
    """The account of one of them, call by call."""
    found = report.error_of(of)
    added = [(number, error) for number, error in sorted(report.projected[of].errors.items()) if error]
    return GradientDocument(
        of, report.projected[of].engine, found.exact, found.total, found.beyond,
        tuple(one.name for one in sorted(found.bent, key=lambda one: -abs(one.error))[:BENT]),
        found.cancels, found.unknown,
        tuple(number for number, _ in added), tuple(error for _, error in added),
    )  # fmt: skip


def adjoint_document(adjoint: Adjoint) -> AdjointDocument:
    """What came of a backward pass by hand, as plain values."""
    worst = adjoint.worst
    given, expected, bound = (None,) * 3 if worst is None else (worst.given, worst.expected, worst.bound)
    return AdjointDocument(
        adjoint.number, adjoint.function, adjoint.module, adjoint.source, adjoint.dtype,
        tuple(map(tuple, adjoint.shapes)), str(adjoint.verdict), adjoint.said,
        "" if worst is None else adjoint.names[worst.place], given, expected, bound, adjoint.ratio,
    )  # fmt: skip


def region_document(region: Region) -> RegionDocument:
    """What came of compiled code, as plain values."""
    return RegionDocument(
        region.name, region.module, region.source, region.calls, str(region.verdict), region.said
    )  # fmt: skip


def recording_from(plain: Any) -> RecordingDocument:
    """A document from what JSON holds of it; of an older one no backward passes by hand and no regions."""
    found: RecordingDocument = from_json(RecordingDocument, {"adjoints": [], "gradients": [], "regions": [], **plain})
    return found
