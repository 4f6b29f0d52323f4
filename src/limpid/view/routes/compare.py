"""Two of anything beside each other, and a step with something of it changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from limpid.view.answers import Refused, answer, in_thread, with_body
from limpid.view.compare import Compare
from limpid.view.pairs import Pair
from limpid.view.query import word
from limpid.view.routes.pairs import slice_of, tile_of
from limpid.view.what_if import WhatIf


@dataclass(frozen=True)
class CompareAnswers:
    """Two of anything beside each other, and a step with something of it changed."""

    compare: Compare
    what_if: WhatIf

    def routes(self) -> list[Route]:
        """Every address."""
        return [
            Route("/api/compare", in_thread(self.compared)),
            Route("/api/compare/slice", in_thread(self.compared_slice)),
            Route("/api/compare/tiles", in_thread(self.compared_tiles)),
            Route("/api/compare/bounds", with_body(self.bounds), methods=["POST"]),
            Route("/api/what-if", with_body(self.ask_what_if), methods=["POST"]),
            Route("/api/what-if/{result}/slice", in_thread(self.what_if_slice)),
            Route("/api/what-if/{result}/tiles", in_thread(self.what_if_tiles)),
        ]

    def compared(self, request: Request) -> Response:
        """GET api/compare?a=&b=."""
        return answer(request, self.compare.of(word(request, "a"), word(request, "b")))

    def compared_slice(self, request: Request) -> Response:
        """GET api/compare/slice?a=&b=&entry=&side=a|b|difference|share."""
        return slice_of(request, self._pair(request))

    def compared_tiles(self, request: Request) -> Response:
        """GET api/compare/tiles?a=&b=&name=&index=&side=&level=&row=&column=."""
        return tile_of(request, self._pair(request))

    def _pair(self, request: Request) -> Callable[[str, str], Pair]:
        a, b = word(request, "a"), word(request, "b")
        return lambda name, side: self.compare.pair(a, b, name, side)

    def bounds(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/compare/bounds {"a", "b"}: work out what rounding allows of their differences."""
        a, b = asked.get("a"), asked.get("b")
        if not isinstance(a, str) or not isinstance(b, str):
            raise Refused("a and b are missing: say which two recorded steps are compared")
        return answer(request, self.compare.bound(a, b), 202)

    def ask_what_if(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/what-if: a recorded step with something changed."""
        return answer(request, self.what_if.ask(asked))

    def what_if_slice(self, request: Request) -> Response:
        """GET api/what-if/ID/slice?entry=&side=: a is after what was changed, b before it."""
        return slice_of(request, lambda name, _: self.what_if.pair(request.path_params["result"], name))

    def what_if_tiles(self, request: Request) -> Response:
        """GET api/what-if/ID/tiles?name=&index=&side=&level=&row=&column=."""
        return tile_of(request, lambda name, _: self.what_if.pair(request.path_params["result"], name))
