"""The slope at a point, and how closely finite differences come to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from limpid.primer.cases.surfaces import both_sided, cube, one_sided, slope, square
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import Axis, Series, graph_svg, graph_text
from limpid.primer.figures.svg import FIRST, INK, MUTED, SECOND

SECANTS = ("·", "+")
"""How each line through two points is drawn in characters."""
STEPS = tuple(float(f"1e{power}") for power in range(-13, 1))


def secants_svg(x: float, steps: Sequence[float]) -> str:
    """The parabola, lines through two of its points, and the tangent to which they come."""
    title = f"Lines through two points of x² come closer to the tangent at {shown(x)} as the points come together"
    return graph_svg(title, *_around(x, steps), _lines(x, steps))


def secants_text(x: float, steps: Sequence[float]) -> str:
    return graph_text(*_around(x, steps), _lines(x, steps))


def _around(x: float, steps: Sequence[float]) -> tuple[Axis, Axis]:
    right = x + max(steps) + 0.5
    places = sorted((x - 1, x, *(x + h for h in steps)))
    return Axis("x", x - 1, right, places), Axis("x²", 0.0, square(right) + 1, [square(place) for place in places])


def _lines(x: float, steps: Sequence[float]) -> list[Series]:
    across = [float(one) for one in np.linspace(x - 1, x + max(steps) + 0.5, 80)]

    def straight(rise: float) -> list[tuple[float, float]]:
        return [(one, square(x) + rise * (one - x)) for one in across]

    rises = [one_sided(square, x, h) for h in steps]
    return [
        *(
            Series(f"slope {shown(rise)}", straight(rise), MUTED, mark)
            for rise, mark in zip(rises, SECANTS, strict=True)
        ),
        Series(f"slope {shown(slope(square, x))}", straight(slope(square, x)), SECOND, "×"),
        Series("x²", [(one, square(one)) for one in across], FIRST, "●"),
        Series(
            "",
            [(x, square(x)), *((x + h, square(x + h)) for h in steps)],
            INK,
            "○",
            joined=False,
            note="where they meet it",
        ),
    ]


def difference_error_svg(x: float) -> str:
    """How far finite differences of x³ are from its slope, by their step."""
    title = "The error of a finite difference falls with its step, then rises again by rounding"
    return graph_svg(title, *_of_errors(), _errors(x))


def difference_error_text(x: float) -> str:
    return graph_text(*_of_errors(), _errors(x))


def _of_errors() -> tuple[Axis, Axis]:
    return (
        Axis("step h", STEPS[0], STEPS[-1], (1e-12, 1e-9, 1e-6, 1e-3, 1.0), logarithmic=True),
        Axis("error", 1e-12, 100.0, (1e-12, 1e-9, 1e-6, 1e-3, 1.0), logarithmic=True),
    )


def _errors(x: float) -> list[Series]:
    truth = slope(cube, x)

    def of(way: object) -> list[tuple[float, float]]:
        assert callable(way)
        return [(h, max(abs(way(cube, x, h) - truth), 1e-12)) for h in STEPS]

    return [Series("one side", of(one_sided), SECOND, "×"), Series("both sides", of(both_sided), FIRST, "●")]


FIGURES = {
    "secants": Drawn(secants_svg, secants_text),
    "difference-error": Drawn(difference_error_svg, difference_error_text),
}
