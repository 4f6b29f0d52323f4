"""How the spread of a dot product grows with the number of entries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from limpid.primer.cases.draws import deviation, products
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import Axis, Series, graph_svg, graph_text
from limpid.primer.figures.svg import FIRST, MUTED, SECOND


def dot_spread_svg(sizes: Sequence[int]) -> str:
    """Standard deviations of simulated dot products, on the curve of the square root."""
    title = "The standard deviation of a dot product grows as the square root of the number of entries"
    return graph_svg(title, *_axes(sizes), _series(sizes))


def dot_spread_text(sizes: Sequence[int]) -> str:
    return graph_text(*_axes(sizes), _series(sizes))


def _axes(sizes: Sequence[int]) -> tuple[Axis, Axis]:
    most = max(sizes)
    ticks = [0.0, *(float(size) ** 0.5 for size in sizes)]
    return Axis("entries of each vector", 0.0, most * 1.05, sizes), Axis(
        "standard deviation", 0.0, most**0.5 * 1.1, ticks
    )


def _series(sizes: Sequence[int]) -> list[Series]:
    curve = [(float(d), float(d) ** 0.5) for d in np.linspace(0.25, max(sizes), 120)]
    drawn = [(float(d), deviation(products(d))) for d in sizes]
    divided = [(float(d), deviation(products(d)) / d**0.5) for d in sizes]
    return [
        Series("", curve, MUTED, "·", note="root of the entries"),
        Series("drawn", drawn, FIRST, "●", joined=False),
        Series("divided", divided, SECOND, "○", joined=False),
    ]


FIGURES = {"dot-spread": Drawn(dot_spread_svg, dot_spread_text)}
