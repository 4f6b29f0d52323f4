"""Recordings of a step's calls, and what other formats would do to their losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from limpid.files import MALFORMED, parse_json
from limpid.view.answers import Refused, answer, in_thread, packed, with_body
from limpid.view.kept_formats import KeptFormats
from limpid.view.questions import FormatsQuestion, read
from limpid.view.recording import recording_text


@dataclass(frozen=True)
class RecordingAnswers:
    """Recordings of a step's calls, and what other formats would do to their losses."""

    formats: KeptFormats

    def routes(self) -> list[Route]:
        """Every address."""
        return [
            Route("/api/recordings/{name}", in_thread(self.recording)),
            Route("/api/recordings/{name}/again", in_thread(self.again)),
            Route("/api/recordings/{name}/formats", in_thread(self.tried)),
            Route("/api/recordings/{name}/formats", with_body(self.make), methods=["POST"]),
        ]

    def recording(self, request: Request) -> Response:
        """GET api/recordings/NAME."""
        return packed(request, recording_text(self.formats.folder.recording(request.path_params["name"])))

    def again(self, request: Request) -> Response:
        """GET api/recordings/NAME/again: whether its step can be taken again."""
        return answer(request, self.formats.again(request.path_params["name"]))

    def tried(self, request: Request) -> Response:
        """GET api/recordings/NAME/formats?asked={"PATTERN": "FORMAT"}: what was tried."""
        try:
            asked = parse_json(request.query_params.get("asked", "{}").encode())
        except MALFORMED as error:
            raise Refused("asked is no JSON: expected patterns and formats") from error
        question = read(FormatsQuestion, {"asked": asked})
        return answer(request, self.formats.document(request.path_params["name"], question.asked))

    def make(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/recordings/NAME/formats {"asked"}: try them."""
        question = read(FormatsQuestion, asked)
        return answer(request, self.formats.make(request.path_params["name"], question.asked), 202)
