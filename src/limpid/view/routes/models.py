"""A checkpoint asked for the next token, and a model planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from limpid.view.answers import answer, in_thread, with_body
from limpid.view.folder import Folder
from limpid.view.plan import form, layouts, planned
from limpid.view.play import Play


@dataclass(frozen=True)
class ModelAnswers:
    """A checkpoint asked for the next token, and a model planned."""

    folder: Folder
    play: Play

    def routes(self) -> list[Route]:
        """Every address."""
        return [
            Route("/api/play", with_body(self.ask_model), methods=["POST"]),
            Route("/api/plan", with_body(self.plan), methods=["POST"]),
            Route("/api/plan/form", in_thread(self.plan_form)),
            Route("/api/plan/layouts", with_body(self.plan_layouts), methods=["POST"]),
        ]

    def ask_model(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/play: what a checkpoint says of the next token."""
        return answer(request, self.play.ask(asked))

    def plan(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/plan."""
        return answer(request, planned(self.folder, asked))

    def plan_form(self, request: Request) -> Response:
        """GET api/plan/form."""
        return answer(request, form())

    def plan_layouts(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/plan/layouts: the ways to divide what was planned among its devices."""
        return answer(request, layouts(self.folder, asked))
