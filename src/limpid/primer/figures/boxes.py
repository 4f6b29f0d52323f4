"""Boxes with words in them, for pictures of what follows what; cells of a table, for pictures of weights."""

from __future__ import annotations

from limpid.primer.figures.svg import INK, MUTED, words

HEIGHT = 32


def box(x: float, y: float, width: float, text: str, stroke: str = INK) -> str:
    """A box around its words; x and y are its middle."""
    return (
        f'<rect x="{x - width / 2:g}" y="{y - HEIGHT / 2:g}" width="{width:g}" height="{HEIGHT}" rx="5" fill="none" '
        f'stroke="{stroke}" stroke-width="1.5"/>' + words(x, y + 4.5, text, "middle")
    )


def cell(x: float, y: float, side: float, filled: float, text: str, fill: str) -> str:
    """A square cell from its corner at the left above, filled by so much between 0 and 1."""
    opacity = 0.55 * filled  # words stay readable on the fullest
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{side:g}" height="{side:g}" fill="{fill}" fill-opacity="{opacity:.3g}" '
        f'stroke="{MUTED}" stroke-width="0.75"/>' + words(x + side / 2, y + side / 2 + 4.5, text, "middle")
    )
