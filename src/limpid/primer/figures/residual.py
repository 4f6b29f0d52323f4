"""The residual stream: a block that writes into it, and what a gradient keeps on its way back."""

from __future__ import annotations

from limpid.maths.foundations import chain_rule
from limpid.primer.exercise import shown
from limpid.primer.figures.boxes import HEIGHT, box
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import Axis, Series, graph_svg, graph_text
from limpid.primer.figures.svg import FIRST, INK, MUTED, SECOND, arrow, drawing, line, words

STREAM, NORM, PART = 40.0, 140.0, 270.0
"""From left to right: where the stream runs, and what reads it."""
TEXT = """\
x ──┬──────────────────────────────► + ──┬──────────────────────► + ──►
    │                                ▲   │                        ▲
    └─► norm ─► attention ───────────┘   └─► norm ─► MLP ─────────┘

The line at the top is the stream. Each part reads a normed copy of it,
and what it finds is added."""


def block_svg() -> str:
    """The stream from top to bottom; attention and MLP read it and are added to it."""
    parts = [words(STREAM, 18, "x", "middle"), line(STREAM, 26, STREAM, 120, FIRST, 3),
             line(STREAM, 140, STREAM, 240, FIRST, 3), line(STREAM, 260, STREAM, 296, FIRST, 3)]  # fmt: skip
    for y, part, what in ((60.0, "attention", "takes from other tokens"), (180.0, "MLP", "works on this token alone")):
        joined = y + 70
        parts += [
            arrow(STREAM, y, NORM - 35, y, MUTED),
            box(NORM, y, 70, "norm"),
            arrow(NORM + 35, y, PART - 55, y, MUTED),
            box(PART, y, 110, part, SECOND),
            words(PART, y - HEIGHT / 2 - 8, what, "middle", MUTED),
            line(PART, y + HEIGHT / 2, PART, joined, MUTED, 2),
            arrow(PART, joined, STREAM + 11, joined, MUTED),
            words(NORM, joined - 6, "added", fill=MUTED),
            _plus(STREAM, joined),
        ]
    parts += [arrow(STREAM, 280, STREAM, 306, FIRST), words(STREAM + 14, 304, "to the next block", fill=MUTED)]
    return drawing(360, 316, "A block: two parts read the stream and are added to it", parts)


def _plus(x: float, y: float) -> str:
    """A circle with a plus, in a gap of the stream."""
    ring = f'<circle cx="{x:g}" cy="{y:g}" r="10" fill="none" stroke="{INK}" stroke-width="1.5"/>'
    return ring + line(x - 5, y, x + 5, y, INK, 1.5) + line(x, y - 5, x, y + 5, INK, 1.5)


def block_text() -> str:
    return TEXT


def depth_svg(slope: float, depth: int) -> str:
    """How much of the gradient is left after so many parts, with the stream and without."""
    title = f"Of a gradient, with slopes of {shown(slope)}: with the stream it lasts, without it vanishes"
    return graph_svg(title, *_depth(slope, depth))


def depth_text(slope: float, depth: int) -> str:
    return graph_text(*_depth(slope, depth))


def _depth(slope: float, depth: int) -> tuple[Axis, Axis, list[Series]]:
    alone, added = _left(slope, depth), _left(1 + slope, depth)
    ticks = [10.0**power for power in range(0, -depth - 1, -6)]
    x = Axis("parts that the gradient has passed", 0, depth, range(0, depth + 1, 6))
    y = Axis("what is left of it", min(ticks), 100.0, ticks, logarithmic=True)
    return x, y, [Series("added", added, FIRST, "●"), Series("replaced", alone, SECOND, "○")]


def _left(slope: float, depth: int) -> list[tuple[float, float]]:
    """The product of so many slopes, by the chain rule, for each depth."""
    return [(0.0, 1.0), *((n, float(chain_rule(*[[[slope]]] * n)[0, 0])) for n in range(1, depth + 1))]


FIGURES = {"residual-block": Drawn(block_svg, block_text), "gradient-depth": Drawn(depth_svg, depth_text)}
