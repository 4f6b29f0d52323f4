"""Words as points of a plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.plane import plane_text
from limpid.primer.figures.svg import FIRST, MUTED, arrow, dot, drawing, line, scale, words

SIDE, MARGIN = 260, 30


def points_svg(points: Mapping[str, Sequence[float]]) -> str:
    """Each word as an arrow from the origin."""
    most = max(max(map(abs, place)) for place in points.values()) + 1
    x, y = scale(0, most, MARGIN, SIDE - MARGIN), scale(0, most, SIDE - MARGIN, MARGIN)
    parts = [line(x(0), y(0), x(most), y(0), MUTED), line(x(0), y(0), x(0), y(most), MUTED)]
    for word, (a, b) in points.items():
        parts += [arrow(x(0), y(0), x(a), y(b), FIRST), dot(x(a), y(b), FIRST, 3), words(x(a) + 8, y(b) + 4, word)]
    return drawing(SIDE, SIDE, f"{', '.join(points)} as points of a plane", parts)


def points_text(points: Mapping[str, Sequence[float]]) -> str:
    """The same arrows in characters, and where each ends."""
    ends = ", ".join(f"{word} {shown(place)}" for word, place in points.items())
    return f"{plane_text(points)}\n\n{ends}"


FIGURES = {"points": Drawn(points_svg, points_text)}
