"""Gradient descent: the loss step by step, and the way through a narrow valley."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from limpid.primer.cases import letters
from limpid.primer.cases.surfaces import descended, valley
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import Axis, Series, graph_svg, graph_text
from limpid.primer.figures.svg import FIRST, INK, MUTED, SECOND

LIGHT = "rgb(128 128 128 / 45%)"
COLORS, MARKS = (MUTED, FIRST, SECOND), ("·", "●", "×")


def losses_svg(rates: Sequence[float], steps: int) -> str:
    """The loss of the letter model after each step, with different learning rates."""
    title = "The loss falls slowly with a small learning rate, and goes up and down with one that is too large"
    return graph_svg(title, *_of_losses(steps), _falling(rates, steps))


def losses_text(rates: Sequence[float], steps: int) -> str:
    return graph_text(*_of_losses(steps), _falling(rates, steps))


def _of_losses(steps: int) -> tuple[Axis, Axis]:
    across = tuple(float(tick) for tick in range(0, steps + 1, 10))
    return Axis("steps", 0.0, float(steps), across), Axis("loss in nats", 1.75, 3.5, (2.0, 2.5, 3.0, 3.5))


def _falling(rates: Sequence[float], steps: int) -> list[Series]:
    return [
        Series(f"rate {shown(rate)}", list(enumerate(letters.descent(rate, steps).losses)), color, mark)
        for rate, color, mark in zip(rates, COLORS, MARKS, strict=False)
    ]


def noisy_svg(rate: float, batch: int, steps: int) -> str:
    """The loss of each step's few letters, and that of the whole text."""
    title = "The loss that a step sees goes up and down; the loss of the whole text falls, not at every step"
    return graph_svg(title, *_of_noise(steps), _seen(rate, batch, steps))


def noisy_text(rate: float, batch: int, steps: int) -> str:
    return graph_text(*_of_noise(steps), _seen(rate, batch, steps))


def _of_noise(steps: int) -> tuple[Axis, Axis]:
    across = tuple(float(tick) for tick in range(0, steps + 1, steps // 4))
    return Axis("steps", 0.0, float(steps), across), Axis("loss in nats", 1.5, 3.5, (1.5, 2.0, 2.5, 3.0, 3.5))


def _seen(rate: float, batch: int, steps: int) -> list[Series]:
    found = letters.descent(rate, steps, batch)
    return [
        Series(f"{batch} letters", list(enumerate(found.seen)), MUTED, "·"),
        Series("whole text", list(enumerate(found.losses)), SECOND, "●"),
    ]


def valley_svg(start: Sequence[float], rates: Sequence[float], steps: int) -> str:
    """Lines of equal height, and the ways that two learning rates take across them."""
    title = "In a narrow valley a large rate goes from side to side while a small one hardly moves along"
    return graph_svg(title, *_around(start), [*_heights(start), *_named_at_the_edge(start, _ways(start, rates, steps))])


def valley_text(start: Sequence[float], rates: Sequence[float], steps: int) -> str:
    ways = [way._replace(joined=False) for way in _ways(start, rates, steps)]
    return graph_text(*_around(start), ways)


def _around(start: Sequence[float]) -> tuple[Axis, Axis]:
    wide, high = abs(start[0]) * 1.15, abs(start[1]) * 1.8
    return (
        Axis("along the valley", -wide / 3, wide, (0.0, start[0] / 2, start[0])),
        Axis("across the valley", -high, high, (-start[1], 0.0, start[1])),
    )


def _heights(start: Sequence[float]) -> list[Series]:
    """Parts of ellipses: x² + 10 y² is the same along each."""
    across, up = _around(start)
    found = []
    for share in (0.02, 0.1, 0.3, 0.6, 1.0):
        wide, high = math.sqrt(2 * float(valley(start)) * share), math.sqrt(2 * float(valley(start)) * share / 10)
        turns = np.linspace(0, 2 * math.pi, 240)
        points = [(wide * math.cos(turn), high * math.sin(turn)) for turn in turns]
        pieces: list[list[tuple[float, float]]] = [[]]
        for a, b in points:
            if across.holds(a) and up.holds(b):
                pieces[-1].append((a, b))
            elif pieces[-1]:
                pieces.append([])
        found += [Series("", piece, LIGHT) for piece in pieces if piece]
    return found


def _ways(start: Sequence[float], rates: Sequence[float], steps: int) -> list[Series]:
    def way(rate: float) -> list[tuple[float, float]]:
        return [(float(x), float(y)) for x, y in descended(valley, start, rate, steps)]

    return [
        Series(f"rate {shown(rate)}", way(rate), color, mark)
        for rate, color, mark in zip(rates, (INK, SECOND), ("○", "×"), strict=False)
    ]


def _named_at_the_edge(start: Sequence[float], ways: Sequence[Series]) -> list[Series]:
    """The ways without names, and each name by itself on the right, where no way is."""
    edge = (_around(start)[0].highest, 0.0)
    return [*(way._replace(name="") for way in ways), *(way._replace(points=[edge]) for way in ways)]


FIGURES = {
    "losses": Drawn(losses_svg, losses_text),
    "noisy-losses": Drawn(noisy_svg, noisy_text),
    "two-rates": Drawn(valley_svg, valley_text),
}
