"""What networks of one hidden layer make of a wave, by how many bends they have."""

from __future__ import annotations

from collections.abc import Sequence

from limpid.primer.cases.width import X, fitted, wave
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import Axis, Series, graph_svg, graph_text
from limpid.primer.figures.svg import FIRST, MUTED, SECOND

SHOWN = slice(None, None, 5)


def fit_svg(widths: Sequence[int]) -> str:
    """The wave, and what each network makes of it."""
    return graph_svg("The more bends a network has, the closer it comes to the wave", *_fit(widths))


def fit_text(widths: Sequence[int]) -> str:
    return graph_text(*_fit(widths))


def _fit(widths: Sequence[int]) -> tuple[Axis, Axis, list[Series]]:
    x, y = Axis("x", 0, 1, (0, 0.25, 0.5, 0.75, 1)), Axis("y", -1.2, 1.2, (-1, 0, 1))
    ways = [("the wave", wave(X), MUTED, "·")]
    ways += [(f"{width} bends", fitted(width), colour, mark)
             for width, colour, mark in zip(widths, (SECOND, FIRST), "○●", strict=False)]  # fmt: skip
    at = X[SHOWN].tolist()
    series = [
        Series(name, list(zip(at, made[SHOWN].tolist(), strict=True)), colour, mark)
        for name, made, colour, mark in ways
    ]
    return x, y, series


FIGURES = {"fit-by-width": Drawn(fit_svg, fit_text)}
