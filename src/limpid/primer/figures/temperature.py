"""What a temperature does to the probabilities that softmax makes of scores."""

from __future__ import annotations

from collections.abc import Sequence

from limpid.maths.foundations import softmax
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.svg import FIRST, INK, MUTED, drawing, line, words
from limpid.primer.values import places

BAR, GAP, GROUP, HEIGHT, TOP = 24, 7, 24, 150, 34
CHARACTERS = 40
"""Of a bar of probability 1."""


def temperature_svg(z: Sequence[float], temperatures: Sequence[float]) -> str:
    """A group of bars for each temperature, one bar for each score."""
    width = len(z) * (BAR + GAP)
    bottom = TOP + HEIGHT
    parts = []
    for group, temperature in enumerate(temperatures):
        left = 20 + group * (width + GROUP)
        for place, (score, share) in enumerate(zip(z, softmax(z, temperature), strict=True)):
            x, high = left + place * (BAR + GAP), float(share) * HEIGHT
            parts += [
                f'<rect x="{x}" y="{bottom - high:.4g}" width="{BAR}" height="{high:.4g}" fill="{FIRST}"/>',
                words(x + BAR / 2, bottom - high - 5, places(share, 2), "middle"),
                words(x + BAR / 2, bottom + 16, shown(score), "middle", MUTED),
            ]
        parts.append(line(left - 4, bottom, left + width - GAP + 4, bottom, INK))
        parts.append(words(left + (width - GAP) / 2, bottom + 38, f"temperature {shown(temperature)}", "middle"))
    right = 20 + len(temperatures) * (width + GROUP) - GROUP + 16
    said = ", ".join(map(shown, temperatures))
    return drawing(right, bottom + 50, f"probabilities of the scores {shown(z)} at the temperatures {said}", parts)


def temperature_text(z: Sequence[float], temperatures: Sequence[float]) -> str:
    """The same as lying bars."""
    lines = []
    for temperature in temperatures:
        lines.append(f"temperature {shown(temperature)}")
        for score, share in zip(z, softmax(z, temperature), strict=True):
            lines.append(f"{shown(score):>8}  {'█' * round(float(share) * CHARACTERS):{CHARACTERS}} {places(share, 3)}")
    return "\n".join(lines)


FIGURES = {"temperature": Drawn(temperature_svg, temperature_text)}
