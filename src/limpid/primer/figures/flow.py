"""A gradient on its way back through layers that bend, with what they read added and without."""

from __future__ import annotations

import math

from limpid.primer.cases.depth import gradient_norms
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import Axis, Series, graph_svg, graph_text
from limpid.primer.figures.svg import FIRST, SECOND


def flow_svg(bend: str, scale: float, depth: int) -> str:
    """Its length after each layer, on a logarithmic scale."""
    title = f"Length of a gradient behind layers with {bend}, weights of scale {shown(scale)}: added, and replaced"
    return graph_svg(title, *_drawn(bend, scale, depth))


def flow_text(bend: str, scale: float, depth: int) -> str:
    return graph_text(*_drawn(bend, scale, depth))


def _drawn(bend: str, scale: float, depth: int) -> tuple[Axis, Axis, list[Series]]:
    added, replaced = (gradient_norms(bend, scale, depth, kind) for kind in (True, False))
    lowest, highest = (math.log10(one) for one in (min(*added, *replaced), max(*added, *replaced)))
    low, high = 2 * math.floor(lowest / 2), 2 * math.ceil(highest / 2)
    every = max(2, 2 * round((high - low) / 10))
    ticks = [10.0**power for power in range(low, high + 1, every)]
    x = Axis("layers that the gradient has passed", 0, depth, range(0, depth + 1, max(1, depth // 4)))
    y = Axis("length of the gradient", 10.0**low, 10.0**high, ticks, logarithmic=True)
    return x, y, [Series("added", list(enumerate(added)), FIRST, "●"),
                  Series("replaced", list(enumerate(replaced)), SECOND, "○")]  # fmt: skip


FIGURES = {"gradient-flow": Drawn(flow_svg, flow_text)}
