"""Runs: their list, one of them, its curves, its events as they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from limpid.history.curves import Axis
from limpid.view.answers import Refused, answer, in_thread, with_body
from limpid.view.live import Streams, Watched, with_heartbeats
from limpid.view.query import LAST, number
from limpid.view.questions import LabelsQuestion, read
from limpid.view.runs import Runs
from limpid.view.series import POINTS

MOST_POINTS = 10_000
MOST_COLUMNS = 64


@dataclass(frozen=True)
class RunAnswers:
    """Runs: their list, one of them, its curves, its events as they come."""

    runs: Runs
    streams: Streams

    def routes(self) -> list[Route]:
        """Every address."""
        return [
            Route("/api/runs", in_thread(self.listed)),
            Route("/api/runs/{run}", in_thread(self.overview)),
            Route("/api/runs/{run}/labels", with_body(self.label), methods=["POST"]),
            Route("/api/runs/{run}/metrics", in_thread(self.metrics)),
            Route("/api/runs/{run}/events", self.events),
        ]

    def listed(self, request: Request) -> Response:
        """GET api/runs."""
        return answer(request, self.runs.list())

    def overview(self, request: Request) -> Response:
        """GET api/runs/R."""
        return answer(request, self.runs.overview(request.path_params["run"]))

    def label(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/runs/R/labels {"tags", "note"}."""
        question = read(LabelsQuestion, asked)
        return answer(request, self.runs.label(request.path_params["run"], question.tags, question.note))

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
            return self.streams.send(with_heartbeats(watched.look))

        return await in_thread(begin)(request)
