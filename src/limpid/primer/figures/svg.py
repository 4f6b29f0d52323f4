"""Parts of pictures, as SVG that takes its colours from the page around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

INK, MUTED, FIRST, SECOND = (
    "currentColor",
    "var(--muted, #777)",
    "var(--first, #1f6fb4)",
    "var(--second, #c4432b)",
)


WIDE = 430
"""Beyond it the words of a picture would be too small on a phone of 360 pixels."""


def drawing(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """A picture that a screen reader says by its title; a wide one keeps its size on a narrow screen, and scrolls."""
    kind = 'class="wide" ' if width > WIDE else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {kind}viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def line(
    x1: float, y1: float, x2: float, y2: float, stroke: str = INK, width: float = 1.0, dashed: bool = False
) -> str:
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<line x1="{x1:.4g}" y1="{y1:.4g}" x2="{x2:.4g}" y2="{y2:.4g}" stroke="{stroke}" '
        f'stroke-width="{width:g}"{dashes}/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, stroke: str) -> str:
    """A line with a head at its end."""
    length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
    along, across = ((x2 - x1) / length, (y2 - y1) / length), ((y1 - y2) / length, (x2 - x1) / length)
    corners = [(x2 - 9 * along[0] + side * 4 * across[0], y2 - 9 * along[1] + side * 4 * across[1]) for side in (1, -1)]
    head = " ".join(f"{x:.4g},{y:.4g}" for x, y in [(x2, y2), *corners])
    return line(x1, y1, x2, y2, stroke, 2) + f'<polygon points="{head}" fill="{stroke}"/>'


def dot(x: float, y: float, fill: str = INK, radius: float = 4.0) -> str:
    return f'<circle cx="{x:.4g}" cy="{y:.4g}" r="{radius:g}" fill="{fill}"/>'


def words(x: float, y: float, text: str, anchor: str = "start", fill: str = INK) -> str:
    return f'<text x="{x:.4g}" y="{y:.4g}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'


def boxed(x: float, y: float, width: float, height: float, text: str, stroke: str = MUTED, filled: bool = False) -> str:
    """Text in the middle of a frame."""
    inside = f'fill="{stroke}" fill-opacity="0.15"' if filled else 'fill="none"'
    return (
        f'<rect x="{x:.4g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}" rx="4" stroke="{stroke}" {inside}/>'
        + words(x + width / 2, y + height / 2 + 4.5, text, "middle")
    )


def curve(points: Iterable[tuple[float, float]], stroke: str = FIRST) -> str:
    path = " ".join(f"{x:.4g},{y:.4g}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="2"/>'


def scale(lowest: float, highest: float, start: float, stop: float) -> Callable[[float], float]:
    """From a number to a place on the picture."""
    return lambda value: start + (value - lowest) / (highest - lowest) * (stop - start)
