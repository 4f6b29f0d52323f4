"""The exponential function, and the logarithm that undoes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import Axis, Series, graph_svg, graph_text
from limpid.primer.figures.svg import FIRST, MUTED, SECOND

X = Axis("x", -3.0, 8.0, (-2.0, 0.0, 2.0, 4.0, 6.0, 8.0))
Y = Axis("y", -3.0, 8.0, (-2.0, 0.0, 2.0, 4.0, 6.0, 8.0))

POINTS = "points of eˣ, and their images"


def undoing_svg(powers: Sequence[float]) -> str:
    """Both curves, mirrored in the line between them, and points of one with their mirror images."""
    return graph_svg("the exponential function and the logarithm, mirror images of each other", X, Y, _series(powers))


def undoing_text(powers: Sequence[float]) -> str:
    return graph_text(X, Y, _series(powers))


def _series(powers: Sequence[float]) -> list[Series]:
    up = [(float(x), float(np.exp(x))) for x in np.linspace(X.lowest, np.log(Y.highest), 200)]
    points = [(x, float(np.exp(x))) for x in powers]
    return [
        Series("y = x", [(value, value) for value in (X.lowest, X.highest)], MUTED, "·"),
        Series("eˣ", up, FIRST, "+"),
        Series("ln x", [(y, x) for x, y in up], SECOND, "o"),
        Series("", [(y, x) for x, y in points], SECOND, "●", joined=False, note=POINTS),
        Series("", points, FIRST, "●", joined=False, note=POINTS),
    ]


FIGURES = {"undoing": Drawn(undoing_svg, undoing_text)}
