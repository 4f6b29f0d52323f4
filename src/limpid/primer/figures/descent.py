"""Steps down the curve (w − minimum)², each against the slope where it begins."""

from __future__ import annotations

import numpy as np

from limpid.maths.update import SGD
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import Axis, Series, graph_svg, graph_text
from limpid.primer.figures.svg import FIRST, SECOND
from limpid.primer.updates import path


def places(minimum: float, start: float, rate: float, steps: int) -> list[float]:
    """The weight before the first step and after each."""
    return [float(one[0]) for one in path(SGD(), lambda w: (w[0] - minimum) ** 2, [start], rate, steps)]


def _drawn(minimum: float, start: float, rate: float, steps: int) -> tuple[Axis, Axis, list[Series]]:
    """Both axes, the curve, and the steps on it."""
    reach = 1.15 * abs(start - minimum)
    low, high = minimum - reach, minimum + reach
    along = [(float(w), float((w - minimum) ** 2)) for w in np.linspace(low, high, 81)]
    found = [(w, (w - minimum) ** 2) for w in places(minimum, start, rate, steps)]
    x = Axis("weight w", low, high, [minimum - abs(start - minimum), minimum, minimum + abs(start - minimum)])
    y = Axis("loss", 0.0, reach**2, [0, (start - minimum) ** 2])
    steps_on_it = Series("", found, SECOND, joined=False, note="the weight after each step")
    return x, y, [Series("", along, FIRST, "·", note="the loss"), steps_on_it]


def descent_svg(minimum: float, start: float, rate: float, steps: int) -> str:
    """The curve, and a dot for the weight after each step."""
    x, y, series = _drawn(minimum, start, rate, steps)
    return graph_svg(f"{steps} steps of size {shown(rate)} down a curve from {shown(start)}", x, y, series)


def descent_text(minimum: float, start: float, rate: float, steps: int) -> str:
    """The same in characters, and the weights in a row."""
    x, y, series = _drawn(minimum, start, rate, steps)
    row = " → ".join(shown(one, 3) for one in places(minimum, start, rate, min(steps, 6)))
    return f"{graph_text(x, y, series)}\nstep size {shown(rate)}: {row}"


FIGURES = {"descent": Drawn(descent_svg, descent_text)}
