"""Ways down a valley, and learning rates over the steps of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from limpid.config import UpdateConfig
from limpid.maths.operation import Array
from limpid.maths.update import SGD, AdamW, Momentum, UpdateRule
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import Axis, Series, graph_text
from limpid.primer.figures.svg import FIRST, INK, MUTED, SECOND, curve, dot, drawing, line, scale, words
from limpid.primer.updates import path
from limpid.schedule import learning_rate

RULES: dict[str, tuple[UpdateRule, str]] = {
    "gradient descent": (SGD(), MUTED),
    "momentum": (Momentum(), FIRST),
    "AdamW": (AdamW(), SECOND),
}
WIDTH, HEIGHT, MARGIN = 372, 220, 22
NAMES = (0, 130, 230)
"""Where the names of three curves begin."""
MARKS = ("·", "○", "●")
SEEN = 20
"""Steps whose places are shown in characters."""


def _paths(
    steepness: float, start: Sequence[float], rates: dict[str, float], steps: int
) -> dict[str, tuple[list[Array], list[float]]]:
    """The places of each rule, and the loss at each."""

    def loss(place: Array) -> Any:
        return (place[0] ** 2 + steepness * place[1] ** 2) / 2

    ways = {name: path(RULES[name][0], loss, start, rate, steps) for name, rate in rates.items()}
    return {name: (places, [float(loss(place)) for place in places]) for name, places in ways.items()}


def valley_svg(steepness: float, start: Sequence[float], rates: dict[str, float], steps: int) -> str:
    """Lines of equal loss, and the way of each rule."""
    wide, high = 1.15 * abs(start[0]), 1.6 * abs(start[1])
    x, y = scale(-wide / 5, wide, MARGIN, WIDTH - MARGIN), scale(-high, high, HEIGHT - MARGIN, MARGIN)
    top = start[0] ** 2 + steepness * start[1] ** 2
    turn = np.linspace(0, 2 * np.pi, 181)
    parts = []
    for share in (0.02, 0.15, 0.45, 1.0):
        radius = (share * top) ** 0.5
        ring = [(x(radius * np.cos(angle)), y(radius / steepness**0.5 * np.sin(angle))) for angle in turn]
        parts.append(curve(ring, MUTED).replace('stroke-width="2"', 'stroke-width="0.6"'))
    for left, (name, (places, _)) in zip(NAMES, _paths(steepness, start, rates, steps).items(), strict=True):
        colour = RULES[name][1]
        parts.append(curve([(x(a), y(b)) for a, b in places], colour))
        parts += [dot(x(a), y(b), colour, 2) for a, b in places]
        parts.append(words(MARGIN + left, 18, f"— {name}", fill=colour))
    parts += [dot(x(0), y(0), INK, 3), line(x(0), y(0), x(0), HEIGHT - 18, INK, 0.5)]
    parts.append(words(x(0), HEIGHT - 5, "minimum", "middle"))
    return drawing(WIDTH, HEIGHT, f"Ways down a narrow valley: {', '.join(rates)}", parts)


def valley_text(steepness: float, start: Sequence[float], rates: dict[str, float], steps: int) -> str:
    """The first steps of each rule as places, and the loss after some of them."""
    wide, high = 1.15 * abs(start[0]), 1.6 * abs(start[1])
    ways = [
        Series(name, [(float(a), float(b)) for a, b in places[: SEEN + 1]], mark=mark, joined=False)
        for (name, (places, _)), mark in zip(_paths(steepness, start, rates, steps).items(), MARKS, strict=True)
    ]
    drawn = graph_text(
        Axis(f"along; the places before the first step and after each of {SEEN}", -wide / 5, wide, (0.0, start[0])),
        Axis("across", -high, high, (-start[1], 0.0, start[1])),
        ways,
    )
    shown_at = sorted({0, 1, 2, steps // 4, steps // 2, steps})
    lines = ["loss after".ljust(18) + "".join(f"{f'step {step}':>9}" for step in shown_at)]
    for name, (_, losses) in _paths(steepness, start, rates, steps).items():
        lines.append(name.ljust(18) + "".join(f"{shown(losses[step], 3):>9}" for step in shown_at))
    return "\n".join([drawn, "", *lines])


Shape = Literal["cosine", "linear", "warmup_stable_decay"]
SCHEDULES: dict[Shape, str] = {"cosine": FIRST, "linear": MUTED, "warmup_stable_decay": SECOND}


def _rates(schedule: Shape, peak: float, warmup: int, steps: int) -> list[float]:
    update = UpdateConfig(learning_rate=peak, warmup_steps=warmup, schedule=schedule, min_learning_rate_ratio=0.0)
    return [learning_rate(step, steps, update) for step in range(1, steps + 1)]


def schedules_svg(peak: float, warmup: int, steps: int) -> str:
    """Learning rates over the steps."""
    x, y = scale(0, steps, 54, WIDTH - MARGIN), scale(0, peak, HEIGHT - MARGIN - 10, MARGIN + 12)
    parts = [line(x(0), y(0), x(steps), y(0), MUTED), line(x(0), y(0), x(0), y(peak), MUTED),
             line(x(warmup), y(0), x(warmup), y(peak), MUTED, dashed=True),
             words(x(warmup) + 4, y(0) - 6, "end of warm-up"), words(48, y(peak) + 4, shown(peak), "end"),
             words(48, y(0) + 4, "0", "end"), words(x(steps), y(0) + 18, f"step {shown(steps)}", "end")]  # fmt: skip
    for left, (name, colour) in zip((0, 76, 140), SCHEDULES.items(), strict=True):
        rates = [0.0, *_rates(name, peak, warmup, steps)]
        parts.append(curve([(x(step), y(rate)) for step, rate in enumerate(rates)], colour))
        parts.append(words(54 + left, 16, f"— {name.replace('_', '–')}", fill=colour))
    return drawing(WIDTH, HEIGHT, "Learning rates that climb, then fall", parts)


def schedules_text(peak: float, warmup: int, steps: int) -> str:
    """Learning rates at some of the steps."""
    shown_at = sorted({1, warmup // 2, warmup, steps // 4, steps // 2, 3 * steps // 4, steps})
    lines = ["step".ljust(21) + "".join(f"{shown(step):>7}" for step in shown_at)]
    for name in SCHEDULES:
        rates = _rates(name, peak, warmup, steps)
        lines.append(
            name.replace("_", "-").ljust(21) + "".join(f"{shown(rates[s - 1] / peak, 2):>7}" for s in shown_at)
        )
    return "\n".join([*lines, f"(shares of the highest rate, {shown(peak)})"])


FIGURES = {"valley": Drawn(valley_svg, valley_text), "schedules": Drawn(schedules_svg, schedules_text)}
