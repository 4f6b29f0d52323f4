"""What an address asks for: numbers and words of its query, a step, a part of an array, a tile."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request

from limpid.source.find import MOST_DIGITS
from limpid.view.answers import Refused
from limpid.view.documents.step import SliceKind
from limpid.view.slices import Asked, parsed

LAST = 2**62
MOST_TILES = 2**31
LONGEST = 500
"""Letters of the name of an entry."""


def number(request: Request, name: str, otherwise: int, most: int) -> int:
    """A whole number of the query.

    Raises  Refused for what is none, or too large
    """
    text = request.query_params.get(name)
    return otherwise if text is None else whole(text, name, most)


def whole(text: str, name: str, most: int) -> int:
    """A whole number as it was typed.

    Raises  Refused for what is none
    """
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Refused(f"{name} is {text[:40]!r}: expected a whole number")
    return min(int(text), most)


def word(request: Request, name: str) -> str:
    """A word of the query.

    Raises  Refused where it is missing, or too long
    """
    found = request.query_params.get(name, "")
    if not found or len(found) > LONGEST:
        raise Refused(f"{name} is missing: say which part of which array is asked for")
    return found


def step_of(request: Request) -> tuple[str, int]:
    """The run and the step that an address names.

    Raises  Refused for what is no number
    """
    text = request.path_params["step"]
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise Refused(f"{text[:40]!r} is no step: expected a number from 1 on", 404)
    return request.path_params["run"], int(text)


def matrix(request: Request) -> Asked:
    """The matrix that leading indices leave of an array."""
    return parsed(f"{word(request, 'name')}[{request.query_params.get('index', '')}]")


def tile(request: Request) -> tuple[int, int, int]:
    """Level, row and column of a tile."""
    level, row, column = (number(request, name, 0, MOST_TILES) for name in ("level", "row", "column"))
    return level, row, column


def kind(request: Request) -> SliceKind:
    """What is asked of an array: checked where it is used."""
    return cast(SliceKind, request.query_params.get("kind", "value"))
