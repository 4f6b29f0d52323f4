"""The page itself, its scripts and styles, and what every page shows alike."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from limpid.tracing.cache import program
from limpid.view import bundle
from limpid.view.answers import Refused, encoded, in_thread, packed, tagged
from limpid.view.equations import equations_view
from limpid.view.runs import Runs, Stamp, stamp_of

MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css"}


@dataclass(frozen=True)
class Pages:
    """The page itself, its scripts and styles, and what every page shows alike."""

    runs: Runs

    def routes(self) -> list[Route]:
        """Every address."""
        return [
            Route("/", in_thread(self.page)),
            Route("/static/{file}", in_thread(self.bundle)),
            Route("/api/equations", in_thread(self.equations)),
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
        return tagged(request, f"{asked} {stamp}", lambda: packed(request, _static(file, stamp), media_type=kind))

    def equations(self, request: Request) -> Response:
        """GET api/equations: the catalogue."""
        return tagged(request, program(), lambda: packed(request, _catalogue()))


@lru_cache(maxsize=32)
def _static(file: Path, stamp: Stamp) -> bytes:
    """Script or style as it lies packed; the stamp says which."""
    return gzip.compress(file.read_bytes())


@cache
def _catalogue() -> bytes:
    return gzip.compress(encoded(equations_view()))
