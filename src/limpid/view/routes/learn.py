"""The primer: chapters, exercises, what was answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from limpid.view.answers import answer, in_thread, with_body
from limpid.view.learn import LARGEST_SEED, Practised, chapter_view, contents, keep, practice
from limpid.view.learn_sheet import sheet_view
from limpid.view.query import LAST, number, whole
from limpid.view.steps import Steps


@dataclass(frozen=True)
class LearnAnswers:
    """The primer: chapters, exercises, what was answered."""

    steps: Steps

    def routes(self) -> list[Route]:
        """Every address."""
        return [
            Route("/api/learn", in_thread(self.learn)),
            Route("/api/learn/grade", with_body(self.grade), methods=["POST"]),
            Route("/api/learn/practice", in_thread(self.practice)),
            Route("/api/learn/sittings", with_body(self.sitting), methods=["POST"]),
            Route("/api/learn/exercises/{exercise}", in_thread(self.exercise)),
            Route("/api/learn/sheet", in_thread(self.sheet)),
            Route("/api/learn/longer/{puzzle}", in_thread(self.longer)),
            Route("/api/learn/{chapter}", in_thread(self.chapter)),
        ]

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
