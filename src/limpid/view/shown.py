"""What a notebook cell shows of a result: the answers about its folder, and the address that the page opens at."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from limpid.doctor.finding import Finding
from limpid.planning.figure import COUNTS
from limpid.planning.published import known
from limpid.planning.report import Plan
from limpid.primer.chapter import Chapter
from limpid.run import RUNS, Run
from limpid.source import RecordedStep, find_run
from limpid.tracing import Trace
from limpid.view.addresses import of_run, of_step
from limpid.view.answers import Refused, answer, in_thread
from limpid.view.arrays import StepArrays
from limpid.view.documents.given import GivenDocument
from limpid.view.kept import Kept
from limpid.view.pairs import Pair
from limpid.view.plan import document as plan_document
from limpid.view.routes.pairs import slice_of, tile_of
from limpid.view.server import not_found
from limpid.view.site import Site
from limpid.view.steps import Steps, packed_view
from limpid.view.variants import beside

if TYPE_CHECKING:
    from limpid.comparison.verdict import Comparison


@dataclass(frozen=True)
class Shown:
    """Answers, and where the page opens."""

    app: Starlette
    address: str


def shown(result: Any) -> Shown:
    """A recorded step, a run, a plan, a chapter of the primer, a finding or a comparison."""
    if isinstance(result, Run):
        return Shown(_app(Site.of(result.path.absolute().parent)), of_run(result.path.absolute().name))
    if isinstance(result, Trace):
        return _of_trace(result)
    if isinstance(result, Plan):
        return _of_plan(result)
    if isinstance(result, Chapter):
        return Shown(_app(Site.of(RUNS.absolute())), f"#/learn/{result.name}")
    if isinstance(result, Finding):
        return _given(GivenDocument(finding=result))
    return _of_comparison(result)


def _app(site: Site, *others: Route) -> Starlette:
    return Starlette(routes=[*others, *site.routes()], exception_handlers={404: not_found, 405: not_found})


def _given(document: GivenDocument, *others: Route) -> Shown:
    def given(request: Request) -> Response:
        return answer(request, document)

    return Shown(_app(Site.of(RUNS.absolute()), Route("/api/given", in_thread(given)), *others), "#/given")


def _of_comparison(comparison: Comparison) -> Shown:
    """Two variants, with the arrays that they are compared by."""
    found = beside(comparison, comparison.first.name, comparison.second.name)

    def pair(name: str, side: str) -> Pair:
        if name not in found.pairs:
            raise Refused(f"{name[:80]!r} was not compared", 404)
        return found.pairs[name]

    return _given(
        GivenDocument(comparison=found.document),
        Route("/api/given/slice", in_thread(lambda request: slice_of(request, pair))),
        Route("/api/given/tiles", in_thread(lambda request: tile_of(request, pair))),
    )


@dataclass
class OpenSteps(Steps):
    """The steps of a folder, one of which is open in this process: nothing of it is done twice, or by another one."""

    arrays_of_it: StepArrays = field(kw_only=True)
    name: str = field(kw_only=True)
    _view: bytes | None = None

    def view(self, run: str, step: int) -> tuple[str, bytes]:
        """The document of a step."""
        if not self._is_open(run, step):
            return super().view(run, step)
        if self._view is None:
            self._view = packed_view(self.arrays_of_it)
        return f"{run} {step} {self.arrays_of_it.kept.key()}", self._view

    def arrays(self, run: str, step: int) -> StepArrays:
        """The arrays of a step."""
        return self.arrays_of_it if self._is_open(run, step) else super().arrays(run, step)

    def file(self, run: str, step: int) -> Path:
        """The file of a step."""
        return self.arrays_of_it.kept.record if self._is_open(run, step) else super().file(run, step)

    def _is_open(self, run: str, step: int) -> bool:
        return run == self.name and step == self.arrays_of_it.trace.record.meta["step"]


def _of_trace(trace: Trace) -> Shown:
    record = trace.record.path.absolute()
    run = RecordedStep(record).run
    folder, name = (record.parent, "step") if run is None else (run.path.parent, run.path.name)
    steps = partial(OpenSteps, arrays_of_it=StepArrays(trace, Kept(record)), name=name)
    return Shown(_app(Site.of(folder, steps)), of_step(name, trace.record.meta["step"]))


def _of_plan(plan: Plan) -> Shown:
    """The form with what was asked where a name says of what, else the figures alone."""
    asked = {name: value for name, value in plan.question.items() if value is not None}
    what, folder = asked.get("what"), RUNS
    if what is not None and (isinstance(what, Run | Path) or known(what) is None):
        run = what if isinstance(what, Run) else _run(what)
        if run is None:
            return _given(GivenDocument(plan=plan_document(plan)))
        asked["what"], folder = run.path.absolute().name, run.path.absolute().parent
    if not asked:
        return _given(GivenDocument(plan=plan_document(plan)))
    words = {name: _short(value) if isinstance(value, int | float) else value for name, value in asked.items()}
    return Shown(_app(Site.of(folder.absolute())), f"#/plan?{urlencode(words)}")


def _short(number: float) -> str:
    """A number as people write it, 1T or 32k, where that loses nothing."""
    for size, letter in COUNTS:
        if number >= size and float(f"{number / size:g}") * size == number:
            return f"{number / size:g}{letter}"
    return str(number)


def _run(what: str | Path) -> Run | None:
    """The run that was planned, where it was one."""
    from limpid.errors import LimpidError

    try:
        return find_run(what)
    except LimpidError:
        return None
