"""A query and a key turned by their positions: what stays is the angle between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from limpid.maths.embedding import Rotary
from limpid.maths.foundations import dot
from limpid.maths.operation import Array
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.svg import FIRST, INK, MUTED, SECOND, arrow, drawing, line, words
from limpid.primer.figures.svg import dot as point

ACROSS, HIGH, RADIUS = 340, 230, 76.0
Places = Sequence[Sequence[int]]


def turned(vector: Sequence[float], position: int) -> Array:
    """A vector of two entries as it stands at a position, with one radian for each position."""
    rows = np.broadcast_to(np.asarray(vector, dtype=np.float64), (1, position + 1, 1, 2))
    at_each: Array = Rotary()(rows)
    return at_each[0, position, 0]


def rotation_svg(q: Sequence[float], k: Sequence[float], places: Places) -> str:
    """One circle for each pair of positions, with the query, the key and the angle between them."""
    parts = []
    for number, (t, s) in enumerate(places):
        parts += _circle(number * (HIGH + 22), turned(q, t), turned(k, s), t, s)
    title = "Query and key turned by their positions: the angle between them is the same"
    return drawing(ACROSS, (HIGH + 22) * len(places), title, parts)


def _circle(top: float, q: Array, k: Array, t: int, s: int) -> list[str]:
    x, y = ACROSS / 2, top + HIGH / 2
    unit = RADIUS / max(math.hypot(*q), math.hypot(*k))
    parts = [
        line(x - RADIUS - 12, y, x + RADIUS + 12, y, MUTED, 0.6),
        line(x, y - RADIUS - 12, x, y + RADIUS + 12, MUTED, 0.6),
    ]
    for vector, name, stroke in ((q, f"query at {t}", FIRST), (k, f"key at {s}", SECOND)):
        a, b = float(vector[0]) * unit, float(vector[1]) * unit
        parts.append(arrow(x, y, x + a, y - b, stroke))
        beyond = 1 + 14 / math.hypot(a, b)
        side = "middle" if abs(a) < 20 else "start" if a > 0 else "end"
        parts.append(words(x + a * beyond, y - b * beyond + 4, name, side, stroke))
    parts += [_between(x, y, q, k), point(x, y, INK, 2.5)]
    return [*parts, words(x, top + HIGH + 8, f"dot product {shown(dot(q, k), 4)}", "middle")]


def _between(x: float, y: float, q: Array, k: Array) -> str:
    """An arc from the key to the query, the short way."""
    start, stop = math.atan2(k[1], k[0]), math.atan2(q[1], q[0])
    sweep = (stop - start + math.pi) % (2 * math.pi) - math.pi
    steps = [start + sweep * share / 24 for share in range(25)]
    path = " ".join(f"{x + 26 * math.cos(one):.4g},{y - 26 * math.sin(one):.4g}" for one in steps)
    return f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.5"/>'


def rotation_text(q: Sequence[float], k: Sequence[float], places: Places) -> str:
    """The turned vectors, the angle of each, and what lies between."""
    lines = [f"{'':14}{'vector':20}{'angle':>8}"]
    for t, s in places:
        query, key = turned(q, t), turned(k, s)
        angles = [math.degrees(math.atan2(one[1], one[0])) % 360 for one in (query, key)]
        named = zip((f"query at {t}", f"key at {s}"), (query, key), angles, strict=True)
        lines += [f"{name:14}{_rounded(one):20}{angle:7.1f}°" for name, one, angle in named]
        between = (angles[0] - angles[1] + 180) % 360 - 180
        lines.append(f"{'between':34}{between:7.1f}°   dot product {shown(dot(query, key), 4)}".replace("-", "−"))
    return "\n".join(lines)


def _rounded(vector: Array) -> str:
    return f"[{', '.join(f'{one:.3f}' for one in vector)}]".replace("-", "−")


FIGURES = {"rotation": Drawn(rotation_svg, rotation_text)}
