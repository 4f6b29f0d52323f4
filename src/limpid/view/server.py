"""The server of `limpid serve`: a folder's answers behind the guard."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from limpid.view.answers import Refused, refusal
from limpid.view.safety import Guard
from limpid.view.site import Site


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
