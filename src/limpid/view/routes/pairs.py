"""Parts and tiles of two arrays of one shape, whichever two: steps, checkpoints, variants, before and after."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from limpid.view.answers import numbers
from limpid.view.pairs import Pair
from limpid.view.query import matrix, tile, word
from limpid.view.slices import parsed


def slice_of(request: Request, pair: Callable[[str, str], Pair]) -> Response:
    """A part of one side of two arrays."""
    asked, side = parsed(word(request, "entry")), word(request, "side")
    return numbers(request, pair(asked.name, side).slice(asked, side))


def tile_of(request: Request, pair: Callable[[str, str], Pair]) -> Response:
    """A tile of one side of two arrays."""
    asked, side, place = matrix(request), word(request, "side"), tile(request)
    return numbers(request, pair(asked.name, side).tiles(asked, side, *place))
