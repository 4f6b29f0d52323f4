"""A recorded step: its document, parts of its arrays, one entry explained, its entries over the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from limpid.view.answers import answer, in_thread, numbers, packed, tagged, with_body
from limpid.view.over_steps import OverTime
from limpid.view.query import LAST, kind, matrix, number, step_of, tile, word
from limpid.view.questions import ExactQuestion, read
from limpid.view.steps import Steps

LENS = 64
"""Positions that the logit lens reads out at once, at most."""


@dataclass(frozen=True)
class StepAnswers:
    """A recorded step: its document, parts of its arrays, one entry explained, its entries over the run."""

    steps: Steps
    over_time: OverTime

    def routes(self) -> list[Route]:
        """Every address."""
        return [
            Route("/api/runs/{run}/steps/{step}", in_thread(self.step)),
            Route("/api/runs/{run}/steps/{step}/slice", in_thread(self.slice)),
            Route("/api/runs/{run}/steps/{step}/tiles", in_thread(self.tiles)),
            Route("/api/runs/{run}/steps/{step}/explain", in_thread(self.explain)),
            Route("/api/runs/{run}/steps/{step}/lens", in_thread(self.lens)),
            Route("/api/runs/{run}/steps/{step}/findings", in_thread(self.findings)),
            Route("/api/runs/{run}/over-steps", in_thread(self.over_steps)),
            Route("/api/runs/{run}/steps/{step}/record", with_body(self.record), methods=["POST"]),
            Route("/api/runs/{run}/steps/{step}/exact", with_body(self.exact), methods=["POST"]),
        ]

    def step(self, request: Request) -> Response:
        """GET api/runs/R/steps/N: the step's document, made before."""
        key, content = self.steps.view(*step_of(request))
        return tagged(request, key, lambda: packed(request, content))

    def slice(self, request: Request) -> Response:
        """GET api/runs/R/steps/N/slice?entry=&kind=."""
        return self._tensors(
            request, lambda run, step: self.steps.slice(run, step, word(request, "entry"), kind(request))
        )

    def tiles(self, request: Request) -> Response:
        """GET api/runs/R/steps/N/tiles?name=&index=&kind=&level=&row=&column=."""
        asked, place = matrix(request), tile(request)
        return self._tensors(
            request, lambda run, step: self.steps.arrays(run, step).tiles(asked, kind(request), *place)
        )

    def _tensors(self, request: Request, make: Callable[[str, int], bytes]) -> Response:
        """Arrays of a step, which the browser keeps as long as the step is the same."""
        run, step = step_of(request)
        key = f"{self.steps.stamp(run, step)} {request.url.path}?{request.url.query}"
        return tagged(request, key, lambda: numbers(request, make(run, step)))

    def explain(self, request: Request) -> Response:
        """GET api/runs/R/steps/N/explain?entry=."""
        return answer(request, self.steps.explain(*step_of(request), word(request, "entry")))

    def lens(self, request: Request) -> Response:
        """GET api/runs/R/steps/N/lens?row=&first=&count=: what would be predicted after each block."""
        row, first, count = (number(request, one, 0, LAST) for one in ("row", "first", "count"))
        return answer(request, self.steps.lens(*step_of(request), row, first, count or LENS))

    def findings(self, request: Request) -> Response:
        """GET api/runs/R/steps/N/findings: the doctor's, where they point into the step."""
        return answer(request, self.steps.findings(*step_of(request)))

    def over_steps(self, request: Request) -> Response:
        """GET api/runs/R/over-steps?entry=&what=entry|norm: of every recorded step."""
        what = request.query_params.get("what", "entry")
        return answer(request, self.over_time.of(request.path_params["run"], word(request, "entry"), what))

    def record(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/runs/R/steps/N/record: record the step where it was not, and make its document."""
        return answer(request, self.steps.record(*step_of(request)), 202)

    def exact(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/runs/R/steps/N/exact {"name"}: redo one array in float64."""
        return answer(request, self.steps.redo(*step_of(request), read(ExactQuestion, asked).name), 202)
