"""The density of a normal distribution, and the area over an interval."""

from __future__ import annotations

import numpy as np

from limpid.maths.foundations import normal_density, normal_probability
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, Series, graph_svg, graph_text
from limpid.primer.figures.svg import FIRST, SECOND, scale, words

WIDE = 4.0
"""Standard deviations that are shown on each side."""


def density_svg(low: float, high: float, mean: float = 0.0, std: float = 1.0) -> str:
    """The bell, with the part between two ends filled."""
    x, y = _axes(mean, std)
    across, up = scale(0, 1, LEFT, WIDTH - RIGHT), scale(0, 1, HEIGHT - BOTTOM, TOP)
    inside = np.linspace(max(low, x.lowest), min(high, x.highest), 80)
    corners = [(inside[0], 0.0), *zip(inside, normal_density(inside, mean, std), strict=True), (inside[-1], 0.0)]
    path = " ".join(f"{across(x.share(a)):.4g},{up(y.share(b)):.4g}" for a, b in corners)
    filled = f'<polygon points="{path}" fill="{SECOND}" fill-opacity="0.25"/>'
    area = f"area {normal_probability(low, high, mean, std):.4f}"
    label = words(across(0.99), up(0.8), area, "end", SECOND)
    drawn = graph_svg("the density of a normal distribution, with an interval filled", x, y, _bell(mean, std))
    return drawn.replace("</svg>", f"{filled}{label}</svg>")


def density_text(low: float, high: float, mean: float = 0.0, std: float = 1.0) -> str:
    """The bell in characters, the interval filled."""
    x, y = _axes(mean, std)
    inside = [
        Series("", [(float(a), share * float(normal_density(a, mean, std)))], SECOND, "▒", joined=False)
        for a in np.linspace(max(low, x.lowest), min(high, x.highest), 80)
        for share in np.linspace(0.02, 1, 15)
    ]
    area = f"from {shown(low)} to {shown(high)}: {normal_probability(low, high, mean, std):.4f}"
    return f"{graph_text(x, y, [*inside, *_bell(mean, std)])}▒ area {area}"


def _bell(mean: float, std: float) -> list[Series]:
    every = np.linspace(mean - WIDE * std, mean + WIDE * std, 200)
    return [Series("", [(float(a), float(normal_density(a, mean, std))) for a in every], FIRST, "●")]


def _axes(mean: float, std: float) -> tuple[Axis, Axis]:
    top = float(normal_density(mean, mean, std)) * 1.05
    ticks = [round(mean + steps * std, 6) for steps in range(-4, 5, 2)]
    step = float(f"{top / 4:.1g}")
    return (
        Axis("x", mean - WIDE * std, mean + WIDE * std, ticks),
        Axis("density", 0.0, top, [round(step * count, 6) for count in range(int(top / step) + 1)]),
    )


FIGURES = {"density": Drawn(density_svg, density_text)}
