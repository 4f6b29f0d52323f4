"""A low-rank change of a matrix, the loss of a preference, and the gain of PPO."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from limpid.planning.adapters import low_rank
from limpid.primer.aligned import clipped_gain, reward_loss
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.svg import FIRST, MUTED, SECOND, curve, dot, drawing, line, scale, words

WIDTH, HEIGHT, MARGIN = 372, 240, 40


def _rectangle(x: float, y: float, wide: float, high: float, colour: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" fill="{colour}" fill-opacity="0.15" '
        f'stroke="{colour}"/>'
    )


def low_rank_svg(rows: int, columns: int, rank: int) -> str:
    """The matrix, which stays, and the two factors, which learn."""
    thin, side = 20, 110
    left, top, narrow, wide = 24, 36, 166, 216  # of W, of all, of B, of A
    middle, below = top + side / 2, top + side + 20
    parts = [
        _rectangle(left, top, side, side, MUTED), words(left + side / 2, middle + 4, "W stays", "middle"),
        words(left + side / 2, below, f"{shown(rows * columns)} parameters", "middle", MUTED),
        words((left + side + narrow) / 2, middle + 5, "+", "middle"),
        _rectangle(narrow, top, thin, side, FIRST), words(narrow + thin / 2, middle + 4, "B", "middle", FIRST),
        words((narrow + thin + wide) / 2, middle + 5, "·", "middle"),
        _rectangle(wide, middle - thin / 2, side, thin, FIRST),
        words(wide + side / 2, middle + 4, "A", "middle", FIRST),
        words(wide + side / 2, below, f"{shown(low_rank(columns, rows, rank))} parameters learn", "middle", FIRST),
        words(narrow + thin / 2, top - 10, f"{rank} columns", "middle", FIRST),
        words(wide + side / 2, middle - thin / 2 - 8, f"{rank} rows", "middle", FIRST),
        words(left + side / 2, top - 10, f"{shown(rows)} × {shown(columns)}", "middle", MUTED),
    ]  # fmt: skip
    return drawing(WIDTH, 180, f"A matrix and a change of rank {rank}", parts)


def low_rank_text(rows: int, columns: int, rank: int) -> str:
    """Shapes and sizes."""
    lines = [("W, stays", rows, columns), ("B, learns", rows, rank), ("A, learns", rank, columns)]
    return "\n".join(f"{name:12}{shown(a):>7} × {shown(b):<7}{shown(a * b):>13} parameters" for name, a, b in lines)


def preference_svg(lowest: float, highest: float) -> str:
    """The loss of a reward model over the gap between the two rewards."""
    gaps = np.linspace(lowest, highest, 121)
    losses = [reward_loss(gap, 0.0) for gap in gaps]
    x, y = scale(lowest, highest, MARGIN, WIDTH - MARGIN), scale(0, max(losses), HEIGHT - MARGIN, 30)
    parts = [line(x(lowest), y(0), x(highest), y(0), MUTED), line(x(0), y(0), x(0), 24, MUTED),
             curve([(x(gap), y(loss)) for gap, loss in zip(gaps, losses, strict=True)], FIRST),
             dot(x(0), y(reward_loss(0, 0)), SECOND),
             words(x(0) + 8, y(reward_loss(0, 0)) - 20, "no preference:", fill=SECOND),
             words(x(0) + 8, y(reward_loss(0, 0)) - 5, f"ln 2 = {shown(reward_loss(0, 0), 3)}", fill=SECOND),
             words(x(highest), y(0) + 32, "gap: chosen less rejected", "end"),
             words(x(0) + 8, 30, "loss")]  # fmt: skip
    parts += [words(x(mark), y(0) + 16, shown(mark), "middle") for mark in range(int(lowest), int(highest) + 1, 2)]
    return drawing(WIDTH, HEIGHT, "The loss of a reward model over the gap of two rewards", parts)


def preference_text(lowest: float, highest: float) -> str:
    """The same as a table."""
    gaps = range(int(lowest), int(highest) + 1)
    return "\n".join([
        "gap  " + "".join(f"{shown(gap):>6}" for gap in gaps),
        "loss " + "".join(f"{reward_loss(gap, 0.0):6.2f}" for gap in gaps),
    ])  # fmt: skip


def gain_svg(epsilon: float, highest: float) -> str:
    """What a token gains over its ratio, for a good and for a bad answer."""
    ratios = np.linspace(0.02, highest, 199)
    x, y = scale(0, highest, MARGIN, WIDTH - MARGIN), scale(-highest, highest, HEIGHT - 30, 20)
    parts = [line(x(0), y(0), x(highest), y(0), MUTED), line(x(0), y(-highest), x(0), y(highest), MUTED)]
    for mark in (1 - epsilon, 1, 1 + epsilon):
        parts += [line(x(mark), y(-highest), x(mark), y(highest), MUTED, dashed=mark != 1),
                  words(x(mark), HEIGHT - 12, shown(mark, 3), "middle")]  # fmt: skip
    for advantage, colour, name in ((1.0, FIRST, "advantage 1"), (-1.0, SECOND, "advantage −1")):
        parts.append(curve([(x(r), y(clipped_gain(r, advantage, epsilon))) for r in ratios], colour))
        last = clipped_gain(0.35 * highest, advantage, epsilon)
        parts.append(words(x(0.06 * highest), y(last) - 14 * advantage + 4, name, fill=colour))
    parts += [words(x(0) + 6, 22, "gain"), words(x(highest), y(0) - 6, "ratio", "end")]
    return drawing(WIDTH, HEIGHT, "The gain of PPO over the ratio, clipped", parts)


def gain_text(epsilon: float, highest: float) -> str:
    """The same as a table."""
    ratios: Sequence[float] = (0.5, 1 - epsilon, 1.0, 1 + epsilon, 1.5, highest)
    lines = ["ratio          " + "".join(f"{shown(ratio, 3):>7}" for ratio in ratios)]
    for advantage in (1.0, -1.0):
        gains = "".join(f"{shown(clipped_gain(ratio, advantage, epsilon), 3):>7}" for ratio in ratios)
        lines.append(f"advantage {shown(advantage):>2}   {gains}")
    return "\n".join(lines)


FIGURES = {
    "low-rank": Drawn(low_rank_svg, low_rank_text),
    "preference": Drawn(preference_svg, preference_text),
    "clipped-gain": Drawn(gain_svg, gain_text),
}
