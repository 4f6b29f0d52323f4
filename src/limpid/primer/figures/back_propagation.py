"""A forward and a backward pass through a small network, and gradients on their way through many layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from limpid.primer.cases.network import passed, through_layers
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import Axis, Series, graph_svg, graph_text
from limpid.primer.figures.svg import FIRST, INK, MUTED, SECOND, arrow, drawing, words

VALUE, SLOPE, ROW = 160, 280, 44
"""Where values and slopes stand, and how far rows are apart."""
COLORS = (SECOND, INK, FIRST)
MARKS = ("●", "×", "○")
SMALLEST, LARGEST = 1e-8, 1e6


def two_passes_svg(x: Sequence[float], w: Sequence[Sequence[float]], v: Sequence[float], target: float) -> str:
    """Values on the left, as they go forwards; derivatives of the loss on the right, as they come back."""
    stations = _stations(x, w, v, target)
    parts = [words(VALUE, 20, "forwards ↓", "middle", FIRST), words(SLOPE, 20, "backwards ↑", "middle", SECOND)]
    for place, (name, value, bar) in enumerate(stations):
        y = 50 + place * ROW
        parts += [words(10, y, name, fill=MUTED), words(VALUE, y, value, "middle", FIRST)]
        parts.append(words(SLOPE, y, bar, "middle", SECOND))
        if place + 1 < len(stations):
            parts += [arrow(VALUE, y + 8, VALUE, y + ROW - 16, FIRST)]
            parts += [arrow(SLOPE, y + ROW - 16, SLOPE, y + 8, SECOND)] if place else []
    below = 50 + len(stations) * ROW
    parts.append(words(10, below - 8, "derivatives of the weights:", "start", SECOND))
    parts.append(words(10, below + 12, _said(x, w, v, target), "start", SECOND))
    return drawing(340, below + 24, "Values go forwards, slopes of the loss come back", parts)


def two_passes_text(x: Sequence[float], w: Sequence[Sequence[float]], v: Sequence[float], target: float) -> str:
    stations = _stations(x, w, v, target)
    rows = [
        f"{'':10}{''.join(f'{name:>12}' for name, _, _ in stations)}",
        f"{'forwards →':10}{''.join(f'{value:>12}' for _, value, _ in stations)}",
        f"{'back     ←':10}{''.join(f'{bar:>12}' for _, _, bar in stations)}",
    ]
    return "\n".join([*rows, "", _said(x, w, v, target)])


def _said(x: Sequence[float], w: Sequence[Sequence[float]], v: Sequence[float], target: float) -> str:
    """The weights' derivatives, to which the passes lead."""
    found = passed(x, np.array(w), v, target)
    return f"W\u0305 = {shown(found.w_bar)}, V\u0305 = [{shown(found.v_bar)}]"


def _stations(
    x: Sequence[float], w: Sequence[Sequence[float]], v: Sequence[float], target: float
) -> list[tuple[str, str, str]]:
    """A name, the value there, and the slope of the loss there."""
    found = passed(x, np.array(w), v, target)
    return [
        ("input x", shown(x), ""),
        ("z = W x", shown(found.z), shown(found.z_bar)),
        ("h = relu(z)", shown(found.h), shown(found.h_bar)),
        ("y = V h", shown(found.y), shown(found.y_bar)),
        ("loss", shown(found.loss), "1"),
    ]


def layers_svg(gains: Sequence[float], layers: int) -> str:
    """How long a gradient is after each layer, for layers that shrink, keep and stretch it."""
    return graph_svg(
        "A gradient's length, layer by layer, on a logarithmic scale", *_axes(layers), _runs(gains, layers)
    )


def layers_text(gains: Sequence[float], layers: int) -> str:
    return graph_text(*_axes(layers), _runs(gains, layers))


def _axes(layers: int) -> tuple[Axis, Axis]:
    ticks = (SMALLEST, 1e-4, 1.0, 1e4)
    across = tuple(float(tick) for tick in range(0, layers + 1, 10))
    return Axis("layers behind it", 0.0, float(layers), across), Axis(
        "length of the gradient", SMALLEST, LARGEST, ticks, logarithmic=True
    )


def _runs(gains: Sequence[float], layers: int) -> list[Series]:
    return [
        Series(f"factor {shown(gain)}", list(enumerate(through_layers(gain, layers))), COLORS[place], MARKS[place])
        for place, gain in enumerate(gains)
    ]


FIGURES = {"two-passes": Drawn(two_passes_svg, two_passes_text), "layers": Drawn(layers_svg, layers_text)}
