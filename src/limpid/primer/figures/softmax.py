"""Scores, their exponentials and their shares as bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from limpid.maths.foundations import softmax
from limpid.maths.operation import Array
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.svg import FIRST, INK, MUTED, SECOND, drawing, line, scale, words

ROW, THICK, BAR, PANEL, LEFT, TOP = 34, 20, 56, 122, 10, 34
"""Distances: rows, bars, the longest bar, columns of bars, margins."""
LONGEST = 30
"""Characters of the longest bar."""


def softmax_bars_svg(scores: Sequence[float], temperature: float = 1.0) -> str:
    """Three columns of bars: what goes in, what the exponential makes of it, what is left after dividing."""
    parts = []
    for column, (name, values, colour) in enumerate(_columns(scores, temperature)):
        left = LEFT + column * PANEL
        parts.append(words(left, 20, name, fill=MUTED))
        parts += _bars(left, TOP, values, colour, said=shown if column == 0 else _places)
    title = f"scores {shown(list(scores))}, their exponentials and their shares"
    return drawing(LEFT + 3 * PANEL, TOP + len(scores) * ROW + 8, title, parts)


def softmax_bars_text(scores: Sequence[float], temperature: float = 1.0) -> str:
    """A line for each score, with its share as a bar."""
    columns = [values for _, values, _ in _columns(scores, temperature)]
    lines = [f"{'score':>7}  {'exponential':>12}  {'share':>7}"]
    for score, power, share in zip(*columns, strict=True):
        lines.append(f"{shown(score, 4):>7}  {shown(power, 4):>12}  {share:7.4f}  {_bar(share)}")
    return "\n".join([*lines, f"{'sum':>7}  {shown(columns[1].sum(), 5):>12}  {columns[2].sum():7.4f}"])


def _places(value: float) -> str:
    return f"{value:,.3f}"


def _columns(scores: Sequence[float], temperature: float) -> list[tuple[str, Array, str]]:
    divided = np.asarray(scores, float) / temperature
    return [
        ("score", np.asarray(scores, float), FIRST),
        ("exponential", np.exp(divided), INK),
        ("over their sum", softmax(scores, temperature), SECOND),
    ]


def _bars(
    left: float, top: float, values: Array, colour: str,
    said: Callable[[float], str] = _places,
) -> list[str]:  # fmt: skip
    """One below the other, each with its number; negative ones go to the left of the line."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    x = scale(low, high if high > low else low + 1, left, left + BAR)
    parts = [line(x(0), top - 4, x(0), top + len(values) * ROW - 8, MUTED)]
    for row, value in enumerate(map(float, values)):
        y, start, width = top + row * ROW, min(x(0), x(value)), abs(x(value) - x(0))
        parts.append(
            f'<rect x="{start:.4g}" y="{y}" width="{width:.4g}" height="{THICK}" fill="{colour}" fill-opacity="0.75"/>'
        )
        parts.append(words(max(x(0), x(value)) + 6, y + THICK - 5, said(value)))
    return parts


def _bar(share: float) -> str:
    return "█" * round(share * LONGEST)


FIGURES = {"softmax-bars": Drawn(softmax_bars_svg, softmax_bars_text)}
