"""The server of `limpid serve`: which address is answered by what."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast, get_args

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from limpid.history.curves import Axis
from limpid.source.find import MOST_DIGITS
from limpid.tracing.cache import program
from limpid.view import bundle, live
from limpid.view.answers import (
    Refused,
    answer,
    encoded,
    in_thread,
    number,
    numbers,
    packed,
    refusal,
    tagged,
    whole,
    with_body,
)
from limpid.view.compare import Compare
from limpid.view.document import SliceKind
from limpid.view.equations import equations_view
from limpid.view.folder import Folder
from limpid.view.jobs import Jobs, WatchedJob
from limpid.view.learn import LARGEST_SEED, Practised, chapter_view, contents, keep, practice
from limpid.view.learn_sheet import sheet_view
from limpid.view.live import Streams, Watched
from limpid.view.over_steps import OverTime
from limpid.view.pairs import Pair
from limpid.view.plan import form, layouts, planned
from limpid.view.play import Play
from limpid.view.questions import ExactQuestion, LabelsQuestion, read
from limpid.view.recording import recording_text
from limpid.view.runs import Runs, Stamp, stamp_of
from limpid.view.safety import Guard
from limpid.view.series import POINTS
from limpid.view.slices import Asked, parsed
from limpid.view.steps import Steps
from limpid.view.what_if import WhatIf

MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css"}
MOST_POINTS = 10_000
MOST_COLUMNS = 64
LAST = 2**62
MOST_TILES = 2**31
LENS = 64
"""Positions that the logit lens reads out at once, at most."""
LONGEST = 500
"""Letters of the name of an entry."""


@dataclass(frozen=True)
class Site:
    """What the server answers from."""

    runs: Runs
    steps: Steps
    jobs: Jobs
    play: Play
    compare: Compare
    what_if: WhatIf
    over_time: OverTime
    streams: Streams = field(default_factory=Streams)

    @classmethod
    def of(cls, folder: Path, steps_of: Callable[[Runs, Jobs], Steps] = Steps) -> Site:
        """The site of a folder of runs; a notebook has steps that are open already."""
        runs, jobs = Runs(Folder(folder)), Jobs()
        steps = steps_of(runs, jobs)
        return cls(runs, steps, jobs, Play(runs.folder), Compare(steps, jobs), WhatIf(steps), OverTime(steps))

    def routes(self) -> list[Route]:
        """Every address."""
        return [
            Route("/", in_thread(self.page)),
            Route("/static/{file}", in_thread(self.bundle)),
            Route("/api/runs", in_thread(self.list)),
            Route("/api/runs/{run}", in_thread(self.overview)),
            Route("/api/runs/{run}/labels", with_body(self.label), methods=["POST"]),
            Route("/api/runs/{run}/metrics", in_thread(self.metrics)),
            Route("/api/runs/{run}/events", self.events),
            Route("/api/runs/{run}/steps/{step}", in_thread(self.step)),
            Route("/api/runs/{run}/steps/{step}/slice", in_thread(self.slice)),
            Route("/api/runs/{run}/steps/{step}/tiles", in_thread(self.tiles)),
            Route("/api/runs/{run}/steps/{step}/explain", in_thread(self.explain)),
            Route("/api/runs/{run}/steps/{step}/lens", in_thread(self.lens)),
            Route("/api/runs/{run}/steps/{step}/findings", in_thread(self.findings)),
            Route("/api/runs/{run}/over-steps", in_thread(self.over_steps)),
            Route("/api/runs/{run}/steps/{step}/record", with_body(self.record), methods=["POST"]),
            Route("/api/runs/{run}/steps/{step}/exact", with_body(self.exact), methods=["POST"]),
            Route("/api/jobs/{job}", in_thread(self.job)),
            Route("/api/jobs/{job}/events", self.job_events),
            Route("/api/recordings/{name}", in_thread(self.recording)),
            Route("/api/equations", in_thread(self.equations)),
            Route("/api/learn", in_thread(self.learn)),
            Route("/api/learn/grade", with_body(self.grade), methods=["POST"]),
            Route("/api/learn/practice", in_thread(self.practice)),
            Route("/api/learn/sittings", with_body(self.sitting), methods=["POST"]),
            Route("/api/learn/exercises/{exercise}", in_thread(self.exercise)),
            Route("/api/learn/sheet", in_thread(self.sheet)),
            Route("/api/learn/longer/{puzzle}", in_thread(self.longer)),
            Route("/api/learn/{chapter}", in_thread(self.chapter)),
            Route("/api/play", with_body(self.ask_model), methods=["POST"]),
            Route("/api/plan", with_body(self.plan), methods=["POST"]),
            Route("/api/plan/form", in_thread(self.plan_form)),
            Route("/api/plan/layouts", with_body(self.plan_layouts), methods=["POST"]),
            Route("/api/compare", in_thread(self.compared)),
            Route("/api/compare/slice", in_thread(self.compared_slice)),
            Route("/api/compare/tiles", in_thread(self.compared_tiles)),
            Route("/api/compare/bounds", with_body(self.bounds), methods=["POST"]),
            Route("/api/what-if", with_body(self.ask_what_if), methods=["POST"]),
            Route("/api/what-if/{result}/slice", in_thread(self.what_if_slice)),
            Route("/api/what-if/{result}/tiles", in_thread(self.what_if_tiles)),
        ]

    def page(self, request: Request) -> Response:
        """The one page; what it shows stands after # in its address, which no server sees."""
        bundle.script()  # which says what to do where it is missing
        return HTMLResponse(bundle.served())

    def bundle(self, request: Request) -> Response:
        """Scripts and styles."""
        asked = request.path_params["file"]
        file = next((one for one in bundle.parts() if one.name == asked), None)
        if file is None:
            raise Refused(f"there is no {asked[:80]} here: reload the page", 404)
        stamp, kind = stamp_of(file), MEDIA_TYPES[file.suffix]
        return tagged(request, _tag(f"{asked} {stamp}"), lambda: packed(request, _static(file, stamp), media_type=kind))

    def list(self, request: Request) -> Response:
        """GET api/runs."""
        return answer(request, self.runs.list())

    def overview(self, request: Request) -> Response:
        """GET api/runs/R."""
        return answer(request, self.runs.overview(request.path_params["run"]))

    def label(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/runs/R/labels {"tags", "note"}."""
        question = read(LabelsQuestion, asked)
        return answer(request, self.runs.label(request.path_params["run"], question.tags, question.note))

    def recording(self, request: Request) -> Response:
        """GET api/recordings/NAME."""
        return packed(request, recording_text(self.runs.folder.recording(request.path_params["name"])))

    def metrics(self, request: Request) -> Response:
        """GET api/runs/R/metrics?columns=&along=&points=&first=&last=."""
        asked = [one for one in request.query_params.get("columns", "").split(",") if one][:MOST_COLUMNS]
        along = request.query_params.get("along", "step")
        if along not in get_args(Axis):
            raise Refused(f"along is {along[:40]!r}: choose one of {', '.join(get_args(Axis))}")
        points = max(2, number(request, "points", POINTS, MOST_POINTS))
        first, last = number(request, "first", 0, LAST), number(request, "last", LAST, LAST)
        found = self.runs.metrics(request.path_params["run"], asked, cast(Axis, along), points, first, last)
        return answer(request, found)

    async def events(self, request: Request) -> Response:
        """GET api/runs/R/events: server-sent events."""
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")

        def begin(_: Request) -> Response:
            watched = Watched.begin(self.runs, request.path_params["run"], after)
            return self.streams.send(live.with_heartbeats(watched.look))

        return await in_thread(begin)(request)

    def step(self, request: Request) -> Response:
        """GET api/runs/R/steps/N: the step's document, made before."""
        key, content = self.steps.view(*_step(request))
        return tagged(request, _tag(key), lambda: packed(request, content))

    def slice(self, request: Request) -> Response:
        """GET api/runs/R/steps/N/slice?entry=&kind=."""
        return self._tensors(
            request, lambda run, step: self.steps.slice(run, step, _word(request, "entry"), _kind(request))
        )

    def tiles(self, request: Request) -> Response:
        """GET api/runs/R/steps/N/tiles?name=&index=&kind=&level=&row=&column=."""
        asked, place = _matrix(request), _tile(request)
        return self._tensors(
            request, lambda run, step: self.steps.arrays(run, step).tiles(asked, _kind(request), *place)
        )

    def _tensors(self, request: Request, make: Callable[[str, int], bytes]) -> Response:
        """Arrays of a step, which the browser keeps as long as the step is the same."""
        run, step = _step(request)
        tag = _tag(f"{self.steps.stamp(run, step)} {request.url.path}?{request.url.query}")
        return tagged(request, tag, lambda: numbers(request, make(run, step)))

    def explain(self, request: Request) -> Response:
        """GET api/runs/R/steps/N/explain?entry=."""
        return answer(request, self.steps.explain(*_step(request), _word(request, "entry")))

    def record(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/runs/R/steps/N/record: record the step where it was not, and make its document."""
        return answer(request, self.steps.record(*_step(request)), 202)

    def exact(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/runs/R/steps/N/exact {"name"}: redo one array in float64."""
        return answer(request, self.steps.redo(*_step(request), read(ExactQuestion, asked).name), 202)

    def job(self, request: Request) -> Response:
        """GET api/jobs/J."""
        return answer(request, self.jobs.of(request.path_params["job"]))

    async def job_events(self, request: Request) -> Response:
        """GET api/jobs/J/events: server-sent events until the job has ended."""
        name = request.path_params["job"]

        def begin(_: Request) -> Response:
            self.jobs.of(name)  # which says that there is none
            return self.streams.send(live.with_heartbeats(WatchedJob(self.jobs, name).look))

        return await in_thread(begin)(request)

    def equations(self, request: Request) -> Response:
        """GET api/equations: the catalogue."""
        return tagged(request, _tag(program()), lambda: packed(request, _catalogue()))

    def ask_model(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/play: what a checkpoint says of the next token."""
        return answer(request, self.play.ask(asked))

    def plan(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/plan."""
        return answer(request, planned(self.runs.folder, asked))

    def plan_layouts(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/plan/layouts: the ways to divide what was planned among its devices."""
        return answer(request, layouts(self.runs.folder, asked))

    def plan_form(self, request: Request) -> Response:
        """GET api/plan/form."""
        return answer(request, form())

    def compared(self, request: Request) -> Response:
        """GET api/compare?a=&b=."""
        return answer(request, self.compare.of(_word(request, "a"), _word(request, "b")))

    def ask_what_if(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/what-if: a recorded step with something changed."""
        return answer(request, self.what_if.ask(asked))

    def what_if_slice(self, request: Request) -> Response:
        """GET api/what-if/ID/slice?entry=&side=: a is after what was changed, b before it."""
        return _slice_of(request, lambda name, _: self.what_if.pair(request.path_params["result"], name))

    def what_if_tiles(self, request: Request) -> Response:
        """GET api/what-if/ID/tiles?name=&index=&side=&level=&row=&column=."""
        return _tile_of(request, lambda name, _: self.what_if.pair(request.path_params["result"], name))

    def compared_slice(self, request: Request) -> Response:
        """GET api/compare/slice?a=&b=&entry=&side=a|b|difference|share."""
        return _slice_of(request, self._pair(request))

    def compared_tiles(self, request: Request) -> Response:
        """GET api/compare/tiles?a=&b=&name=&index=&side=&level=&row=&column=."""
        return _tile_of(request, self._pair(request))

    def _pair(self, request: Request) -> Callable[[str, str], Pair]:
        a, b = _word(request, "a"), _word(request, "b")
        return lambda name, side: self.compare.pair(a, b, name, side)

    def bounds(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/compare/bounds {"a", "b"}: work out what rounding allows of their differences."""
        a, b = asked.get("a"), asked.get("b")
        if not isinstance(a, str) or not isinstance(b, str):
            raise Refused("a and b are missing: say which two recorded steps are compared")
        return answer(request, self.compare.bound(a, b), 202)

    def learn(self, request: Request) -> Response:
        """GET api/learn: the primer's contents."""
        return answer(request, contents())

    def chapter(self, request: Request) -> Response:
        """GET api/learn/CHAPTER."""
        return answer(request, chapter_view(request.path_params["chapter"]))

    def exercise(self, request: Request) -> Response:
        """GET api/learn/exercises/NAME?seed=&run=&step=: with numbers of a seed, or of a recorded step."""
        run, step = request.query_params.get("run"), number(request, "step", 0, LAST)
        seed = number(request, "seed", 0, LARGEST_SEED)
        return answer(request, Practised(self.steps).view(request.path_params["exercise"], seed, run, step or None))

    def longer(self, request: Request) -> Response:
        """GET api/learn/longer/NAME?seed=: one of the longer exercises, with the numbers of a seed."""
        seed = number(request, "seed", 0, LARGEST_SEED)
        return answer(request, Practised(self.steps).longer(request.path_params["puzzle"], seed))

    def sheet(self, request: Request) -> Response:
        """GET api/learn/sheet?exercise=&exercise=&seed=&seed=&answers=&slips=: exercises to print."""
        seeds = [whole(text, "seed", LARGEST_SEED) for text in request.query_params.getlist("seed")]
        asked = [request.query_params.get(one) == "1" for one in ("answers", "slips")]
        return answer(request, sheet_view(request.query_params.getlist("exercise"), seeds, *asked))

    def grade(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/learn/grade: judge an answer."""
        return answer(request, Practised(self.steps).grade(asked))

    def practice(self, request: Request) -> Response:
        """GET api/learn/practice: what was answered, here and in the terminal."""
        return answer(request, practice())

    def sitting(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/learn/sittings: keep what came of an exercise."""
        return answer(request, keep(asked))

    def lens(self, request: Request) -> Response:
        """GET api/runs/R/steps/N/lens?row=&first=&count=: what would be predicted after each block."""
        row, first, count = (number(request, one, 0, LAST) for one in ("row", "first", "count"))
        return answer(request, self.steps.lens(*_step(request), row, first, count or LENS))

    def findings(self, request: Request) -> Response:
        """GET api/runs/R/steps/N/findings: the doctor's, where they point into the step."""
        return answer(request, self.steps.findings(*_step(request)))

    def over_steps(self, request: Request) -> Response:
        """GET api/runs/R/over-steps?entry=&what=entry|norm: of every recorded step."""
        what = request.query_params.get("what", "entry")
        return answer(request, self.over_time.of(request.path_params["run"], _word(request, "entry"), what))


@lru_cache(maxsize=32)
def _static(file: Path, stamp: Stamp) -> bytes:
    """Script or style as it lies packed; the stamp says which."""
    return gzip.compress(file.read_bytes())


@cache
def _catalogue() -> bytes:
    return gzip.compress(encoded(equations_view()))


def _step(request: Request) -> tuple[str, int]:
    """The run and the step that an address names."""
    text = request.path_params["step"]
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise Refused(f"{text[:40]!r} is no step: expected a number from 1 on", 404)
    return request.path_params["run"], int(text)


def _word(request: Request, name: str) -> str:
    found = request.query_params.get(name, "")
    if not found or len(found) > LONGEST:
        raise Refused(f"{name} is missing: say which part of which array is asked for")
    return found


def _slice_of(request: Request, pair: Callable[[str, str], Pair]) -> Response:
    """A part of one side of two arrays."""
    asked, side = parsed(_word(request, "entry")), _word(request, "side")
    return numbers(request, pair(asked.name, side).slice(asked, side))


def _tile_of(request: Request, pair: Callable[[str, str], Pair]) -> Response:
    """A tile of one side of two arrays."""
    asked, side, place = _matrix(request), _word(request, "side"), _tile(request)
    return numbers(request, pair(asked.name, side).tiles(asked, side, *place))


def _matrix(request: Request) -> Asked:
    """The matrix that leading indices leave of an array."""
    return parsed(f"{_word(request, 'name')}[{request.query_params.get('index', '')}]")


def _tile(request: Request) -> tuple[int, int, int]:
    """Level, row and column of a tile."""
    level, row, column = (number(request, name, 0, MOST_TILES) for name in ("level", "row", "column"))
    return level, row, column


def _kind(request: Request) -> SliceKind:
    return cast(SliceKind, request.query_params.get("kind", "value"))  # checked where it is used


def _tag(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


async def not_found(request: Request, error: Exception) -> Response:
    """What is no address of this server."""
    return refusal(
        request, Refused(f"there is nothing at {request.url.path[:200]}", getattr(error, "status_code", 404))
    )


def application(folder: Path, token: str | None = None) -> Starlette:
    """The server of a folder of runs; with a token, whoever asks must show it."""
    return Starlette(
        routes=Site.of(folder).routes(),
        middleware=[Middleware(Guard, token=token)],
        exception_handlers={404: not_found, 405: not_found},
    )
