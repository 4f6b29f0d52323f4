"""Which keys each query may see: all before it, or those in a window."""

from __future__ import annotations

from limpid.maths.attention import CausalSoftmax
from limpid.maths.operation import Array
from limpid.primer.exercise import shown
from limpid.primer.figures.boxes import cell
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.svg import FIRST, INK, MUTED, drawing, words

CELL, LEFT, TOP, APART = 17.0, 40.0, 52.0, 46.0


def _both(tokens: int, window: int) -> list[tuple[str, Array]]:
    """Both rules with their names."""
    return [("all before it", CausalSoftmax().visible(tokens, tokens)),
            (f"a window of {window}", CausalSoftmax(window).visible(tokens, tokens))]  # fmt: skip


def masks_svg(tokens: int, window: int) -> str:
    """Two squares of cells, a row for each query; filled where it sees the key."""
    across = tokens * CELL
    parts = []
    for place, (name, visible) in enumerate(_both(tokens, window)):
        left = LEFT + place * (across + APART)
        middle, scores = left + across / 2, f"{shown(visible.sum())} scores"
        parts += [
            words(middle, y, said, "middle", fill)
            for y, said, fill in ((18.0, name, INK), (TOP - 10, "keys →", MUTED), (TOP + across + 22, scores, MUTED))
        ]
        parts += [
            cell(left + j * CELL, TOP + i * CELL, CELL, float(visible[i, j]), "", FIRST)
            for i in range(tokens)
            for j in range(tokens)
        ]
    parts.append(
        f'<text x="0" y="0" transform="translate({LEFT - 12:g} {TOP + across / 2:g}) rotate(-90)" text-anchor="middle" '
        f'fill="{MUTED}">← queries</text>'
    )
    return drawing(int(LEFT + 2 * across + APART + 10), int(TOP + across + 32), "Which keys each query sees", parts)


def masks_text(tokens: int, window: int) -> str:
    """The same in characters, side by side."""
    both = _both(tokens, window)
    width = max(2 * tokens, 18)
    lines = ["   ".join(f"{name:{width}}" for name, _ in both)]
    for i in range(tokens):
        lines.append(
            "   ".join(f"{' '.join('■' if seen else '·' for seen in visible[i]):{width}}" for _, visible in both)
        )
    lines.append("   ".join(f"{shown(visible.sum()) + ' scores':{width}}" for _, visible in both))
    return "\n".join([*(line.rstrip() for line in lines), "a row for each query, a column for each key"])


FIGURES = {"attention-masks": Drawn(masks_svg, masks_text)}
