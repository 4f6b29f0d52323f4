"""Loss along a fixed amount of compute, and the bytes of a parameter in training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from limpid.planning.laws.scaling import REFIT
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.svg import FIRST, INK, MUTED, SECOND, curve, dot, drawing, line, scale, words
from limpid.primer.sizes import bytes_each
from limpid.primer.values import scientific

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 376, 300, 40, 45, 36
RIGHT = 96
"""Of the axis: for the names of the curves."""


def _loss(compute: float, parameters: float) -> float:
    """Of a size, the compute fixed: what the law says once all tokens that it pays for are read."""
    return float(REFIT.loss(parameters, compute / 6 / parameters))


def compute_svg(computes: Sequence[float], smallest: float, largest: float) -> str:
    """The loss over the size of the model, a curve for each amount of compute, and the best size on it."""
    sizes = np.geomspace(smallest, largest, 121)
    curves = {compute: [_loss(compute, size) for size in sizes] for compute in computes}
    low, high = min(map(min, curves.values())) - 0.1, max(_loss(c, REFIT.optimum(c)[0]) for c in computes) + 0.55
    x = scale(np.log10(smallest), np.log10(largest), LEFT, WIDTH - RIGHT)
    y = scale(low, high, HEIGHT - BOTTOM, TOP)
    parts = [line(LEFT, y(low), WIDTH - RIGHT, y(low), MUTED), line(LEFT, y(low), LEFT, TOP, MUTED)]
    for power in range(int(np.ceil(np.log10(smallest))), int(np.log10(largest)) + 1):
        parts += [line(x(power), y(low), x(power), y(low) + 5, MUTED),
                  words(x(power), y(low) + 20, scientific(10.0**power), "middle")]  # fmt: skip
    for mark in np.arange(np.ceil(low * 2) / 2, high, 0.5):
        parts += [line(LEFT - 5, y(mark), LEFT, y(mark), MUTED), words(LEFT - 9, y(mark) + 4, shown(mark), "end")]
    best = []
    for compute, losses in curves.items():
        seen = [(x(np.log10(size)), y(loss)) for size, loss in zip(sizes, losses, strict=True) if loss <= high]
        n, _ = REFIT.optimum(compute)
        best.append((x(np.log10(n)), y(_loss(compute, n))))
        parts += [curve(seen), words(seen[-1][0] + 6, seen[-1][1] + 4, f"{scientific(compute)} FLOPs")]
    parts += [curve(best, SECOND), *(dot(a, b, SECOND) for a, b in best)]
    parts += [words(12, 20, "loss"), words(WIDTH - RIGHT, y(low) + 38, "parameters", "end"),
              words(best[0][0] + 62, best[0][1] + 44, "best sizes", fill=SECOND)]  # fmt: skip
    return drawing(WIDTH, HEIGHT, "Loss over the size of a model, for fixed amounts of compute", parts)


def compute_text(computes: Sequence[float], smallest: float, largest: float) -> str:
    """The loss of some sizes, and the best one, for each amount of compute."""
    sizes = [10.0**power for power in range(int(np.ceil(np.log10(smallest))), int(np.log10(largest)))]
    lines = ["FLOPs  best size   loss   loss at " + "".join(f"{scientific(size):>8}" for size in sizes)]
    for compute in computes:
        n, d = REFIT.optimum(compute)
        others = "".join(f"{_loss(compute, size):8.2f}" for size in sizes)
        lines.append(f"{scientific(compute):6} {scientific(n, 2):10} {float(REFIT.loss(n, d)):5.2f}          {others}")
    return "\n".join(lines)


def bytes_svg() -> str:
    """A bar of the bytes that one parameter takes in training."""
    parts, place, step = list[str](), 12.0, 22
    colours = (INK, FIRST, INK, SECOND, SECOND)
    for (name, size), colour, low in zip(bytes_each().items(), colours, (84, 102, 84, 84, 102), strict=True):
        wide = step * size
        parts.append(f'<rect x="{place:g}" y="26" width="{wide:g}" height="40" fill="{colour}" fill-opacity="0.18" '
                     f'stroke="{colour}"/>')  # fmt: skip
        parts.append(words(place + wide / 2, 50, shown(size), "middle", colour))
        parts.append(words(place + wide / 2, low, name, "middle", colour))
        place += wide
    total = shown(sum(bytes_each().values()))
    return drawing(WIDTH, 112, f"{total} bytes a parameter",
                   [*parts, words(12, 16, f"{total} bytes of one parameter in training")])  # fmt: skip


def bytes_text() -> str:
    """The same as rows."""
    rows = [f"{name:20} {'█' * int(4 * size)} {shown(size)}" for name, size in bytes_each().items()]
    return "\n".join([*rows, f"{'together, in bytes':20} {shown(sum(bytes_each().values()))}"])


FIGURES = {"compute": Drawn(compute_svg, compute_text), "training-bytes": Drawn(bytes_svg, bytes_text)}
