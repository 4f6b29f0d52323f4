"""Tables and curves as HTML for notebooks: no script, no colours that a dark page would hide, every text escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from limpid.terminal import printable

CELL = "text-align:left;padding:1px 12px 1px 0;vertical-align:top;border:none;white-space:pre-wrap"
NUMBER = CELL.replace("left", "right").replace("pre-wrap", "nowrap")
WIDTH, HEIGHT, MARGIN = 420, 120, 34
LEFT = 56
"""Pixels for what is written beside the vertical axis: seven digits of its size."""


def text(value: Any) -> str:
    """Plain text, as HTML shows it."""
    return html.escape(printable(str(value)))


def table(rows: Iterable[Sequence[Any]], header: Sequence[str] = (), numbers: Sequence[int] = ()) -> str:
    """Rows of plain values; the columns that are named by their place in `numbers` stand at the right."""

    def row(cells: Sequence[Any], tag: str) -> str:
        styles = (NUMBER if place in numbers else CELL for place in range(len(cells)))
        inside = (f'<{tag} style="{style}">{text(cell)}</{tag}>' for style, cell in zip(styles, cells, strict=True))
        return f'<tr style="background:none">{"".join(inside)}</tr>'

    head = f"<thead>{row(header, 'th')}</thead>" if header else ""
    return f"<table>{head}<tbody>{''.join(row(cells, 'td') for cells in rows)}</tbody></table>"


def titled(title: Any, *parts: str) -> str:
    """Parts under a title."""
    return f"<div><b>{text(title)}</b>{''.join(parts)}</div>"


def folded(title: Any, *parts: str) -> str:
    """Parts that are shown when their title is clicked."""
    return f"<details><summary>{text(title)}</summary>{''.join(parts)}</details>"


def curve(x: Sequence[float], y: Sequence[float], x_unit: str, y_unit: str) -> str:
    """A curve as SVG with the ends of both axes written beside it; where a value is not finite there is a gap."""
    finite = [place for place, value in enumerate(y) if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(y[place] for place in finite), max(y[place] for place in finite)
    length, range_ = (x[-1] - x[0]) or 1.0, (high - low) or 1.0

    def point(place: int) -> str:
        at = LEFT + (WIDTH - LEFT - MARGIN) * (x[place] - x[0]) / length
        return f"{at:.1f},{MARGIN / 2 + (HEIGHT - 1.5 * MARGIN) * (high - y[place]) / range_:.1f}"

    parts = [[place for _, place in run] for _, run in groupby(enumerate(finite), lambda pair: pair[1] - pair[0])]
    lines = "".join(f'<polyline points="{" ".join(map(point, part))}"/>' for part in parts)
    bottom, right = HEIGHT - MARGIN, WIDTH - MARGIN
    words = (
        (LEFT - 4, MARGIN / 2 + 4, "end", f"{high:.3g}"), (LEFT - 4, bottom, "end", f"{low:.3g}"),
        (LEFT, bottom + 14, "start", f"{x_unit} {_end(x[0])}"), (right, bottom + 14, "end", _end(x[-1])),
        (LEFT + 4, MARGIN / 2 - 4, "start", y_unit),
    )  # fmt: skip
    said = "".join(
        f'<text x="{a:.0f}" y="{b:.0f}" text-anchor="{end}">{text(word)}</text>' for a, b, end, word in words
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{text(y_unit)} against {text(x_unit)}">'
        f'<g fill="none" stroke="#1f6fb4" stroke-width="1.5">{lines}</g>'
        f'<g fill="currentColor" font-size="11" font-family="sans-serif">{said}</g></svg>'
    )


def _end(value: float) -> str:
    """A step in full, anything else in three digits."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"
