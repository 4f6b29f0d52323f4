"""How far back a gradient reaches through a recurrent state, and through attention."""

from __future__ import annotations

from limpid.primer.cases.recurrent import LENGTH, attention_reach, lstm_reach
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import Axis, Series, graph_svg, graph_text
from limpid.primer.figures.svg import FIRST, MUTED, SECOND

LEAST = 1e-24


def reach_svg(forget_bias: float) -> str:
    """What is left of the gradient, by how many tokens it has gone back."""
    return graph_svg("Through an LSTM's state a gradient fades with every token, through attention it does not",
                     *_reach(forget_bias))  # fmt: skip


def reach_text(forget_bias: float) -> str:
    return graph_text(*_reach(forget_bias))


def _reach(forget_bias: float) -> tuple[Axis, Axis, list[Series]]:
    x = Axis("tokens back", 0, LENGTH, range(0, LENGTH + 1, 20))
    y = Axis("what is left of the gradient", LEAST, 1e2, [10.0**power for power in range(0, -25, -6)], logarithmic=True)
    ways = (("attention", attention_reach(), FIRST, "●"), ("held open", lstm_reach(forget_bias), MUTED, "+"),
            ("LSTM", lstm_reach(0), SECOND, "○"))  # fmt: skip
    return (
        x,
        y,
        [Series(name, list(enumerate(map(float, found)))[1:], colour, mark) for name, found, colour, mark in ways],
    )


FIGURES = {"gradient-time": Drawn(reach_svg, reach_text)}
