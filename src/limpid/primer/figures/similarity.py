"""What a dot product adds up, and the angle between two vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from limpid.maths.foundations import cosine_similarity, dot, norm
from limpid.maths.operation import Array
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.plane import SHADOW, plane_text
from limpid.primer.figures.svg import FIRST, MUTED, SECOND, arrow, boxed, drawing, line, scale, words

STEP, HEIGHT = 64, 36
SIDE, MARGIN = 260, 24
Vector = Sequence[float]


def product_and_sum_svg(a: Vector, b: Vector) -> str:
    """Two rows of numbers, the row of their products, and the sum of these."""
    left, rows = 70, {"a": 20, "b": 70, "products": 134}
    parts = [words(left - 14, top + HEIGHT / 2 + 5, name, "end", MUTED) for name, top in rows.items()]
    for place, (x, y) in enumerate(zip(a, b, strict=True)):
        start = left + place * STEP
        middle = start + HEIGHT / 2 + 3
        parts += [boxed(start, rows["a"], 42, HEIGHT, shown(x), FIRST), boxed(start, rows["b"], 42, HEIGHT, shown(y))]
        parts += [words(middle, rows["b"] - 3, "×", "middle", MUTED)]
        parts += [line(middle, rows["b"] + HEIGHT, middle, rows["products"], MUTED)]
        parts += [boxed(start, rows["products"], 42, HEIGHT, shown(x * y), SECOND)]
        sign = "+" if place < len(a) - 1 else "="
        parts += [words(start + 53, rows["products"] + HEIGHT / 2 + 5, sign, "middle")]
    end = left + len(a) * STEP
    parts += [boxed(end, rows["products"], 52, HEIGHT, shown(dot(a, b)), SECOND, filled=True)]
    return drawing(int(end + 72), 190, f"the products of {shown(a)} and {shown(b)}, and their sum", parts)


def product_and_sum_text(a: Vector, b: Vector) -> str:
    """The same as three rows."""
    width = max(len(shown(value)) for value in [*a, *b, *np.multiply(a, b)])

    def row(values: Vector | Array, between: str) -> str:
        return f" {between} ".join(f"{shown(value):>{width}}" for value in values)

    return "\n".join(
        (
            f"a           {row(a, ' ')}",
            f"b           {row(b, ' ')}",
            f"products    {row(np.multiply(a, b), '+')} = {shown(dot(a, b))}",
        )
    )


def angle_svg(a: Vector, b: Vector) -> str:
    """Two arrows, the angle between them, and the shadow of the second on the line of the first."""
    from_0, to = np.asarray(a, float), np.asarray(b, float)
    shadow = from_0 * dot(a, b) / dot(a, a)
    x, y, height = _axes(from_0, to, shadow)
    start, stop = (float(np.arctan2(one[1], one[0])) for one in (from_0, to))
    opening = (stop - start + np.pi) % (2 * np.pi) - np.pi
    reach = 0.32 * min(norm(a), norm(b))
    turned = start + opening * np.linspace(0, 1, 24)
    bow = " ".join(f"{x(reach * np.cos(t)):.4g},{y(reach * np.sin(t)):.4g}" for t in turned)
    parts = [
        f'<polyline points="{bow}" fill="none" stroke="{MUTED}"/>',
        f'<g opacity="0.35">{line(x(0), y(0), x(shadow[0]), y(shadow[1]), MUTED, 9)}</g>',
        line(x(to[0]), y(to[1]), x(shadow[0]), y(shadow[1]), MUTED, dashed=True),
        arrow(x(0), y(0), x(from_0[0]), y(from_0[1]), FIRST),
        arrow(x(0), y(0), x(to[0]), y(to[1]), SECOND),
        words(x(from_0[0]) + 6, y(from_0[1]) + 4, "a", fill=FIRST),
        words(x(to[0]) + 6, y(to[1]) - 4, "b", fill=SECOND),
        words(MARGIN, height - 6, said(a, b)),
    ]
    return drawing(SIDE, height, f"the angle between {shown(a)} and {shown(b)}", parts)


def angle_text(a: Vector, b: Vector) -> str:
    """Both arrows in characters, the shadow of the second below the first, and the angle in words."""
    shadow = np.asarray(a, float) * dot(a, b) / dot(a, a)
    drawn = plane_text({"a": a, "b": b}, shadow=shadow)
    return f"{drawn}\n\na = {shown(a)}, b = {shown(b)}: {said(a, b)}\n{SHADOW} the shadow of b on the line of a"


def said(a: Vector, b: Vector) -> str:
    """Angle in degrees, and its cosine."""
    cosine = cosine_similarity(a, b)
    return f"angle {shown(np.degrees(np.arccos(cosine)), 3)}°, cosine {shown(cosine, 2)}"


def _axes(*ends: Array) -> tuple[Callable[[float], float], Callable[[float], float], int]:
    """Both directions to one scale, with the origin and every end inside, and how high the picture is."""
    points = np.array([np.zeros(2), *ends])
    low, high = points.min(0), points.max(0)
    unit = (SIDE - 2 * MARGIN - 20) / float((high - low).max())
    up = float(high[1] - low[1]) * unit
    x = scale(low[0], low[0] + 1, MARGIN, MARGIN + unit)
    return x, scale(low[1], low[1] + 1, MARGIN + up, MARGIN + up - unit), int(MARGIN + up + 40)


FIGURES = {
    "product-and-sum": Drawn(product_and_sum_svg, product_and_sum_text),
    "angle": Drawn(angle_svg, angle_text),
}
