"""Two variants of one computation: the engine's own paths, precisions, transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from limpid.view.answers import answer, in_thread, with_body
from limpid.view.kept_variants import KeptVariants
from limpid.view.pairs import Pair
from limpid.view.query import word
from limpid.view.questions import VariantsQuestion, read
from limpid.view.routes.pairs import slice_of, tile_of


@dataclass(frozen=True)
class VariantAnswers:
    """Two variants of one computation: the engine's own paths, precisions, transformers."""

    variants: KeptVariants

    def routes(self) -> list[Route]:
        """Every address."""
        return [
            Route("/api/variants", in_thread(self.compared)),
            Route("/api/variants/made", with_body(self.make), methods=["POST"]),
            Route("/api/variants/slice", in_thread(self.slice)),
            Route("/api/variants/tiles", in_thread(self.tiles)),
        ]

    def compared(self, request: Request) -> Response:
        """GET api/variants?a=&b=."""
        return answer(request, self.variants.document(word(request, "a"), word(request, "b")))

    def make(self, request: Request, asked: dict[str, Any]) -> Response:
        """POST api/variants/made {"a", "b"}: run and judge both."""
        question = read(VariantsQuestion, asked)
        return answer(request, self.variants.make(question.a, question.b), 202)

    def slice(self, request: Request) -> Response:
        """GET api/variants/slice?a=&b=&entry=&side=a|b|difference|share."""
        return slice_of(request, self._pair(request))

    def tiles(self, request: Request) -> Response:
        """GET api/variants/tiles?a=&b=&name=&index=&side=&level=&row=&column=."""
        return tile_of(request, self._pair(request))

    def _pair(self, request: Request) -> Callable[[str, str], Pair]:
        a, b = word(request, "a"), word(request, "b")
        return lambda name, side: self.variants.pair(a, b, name)
