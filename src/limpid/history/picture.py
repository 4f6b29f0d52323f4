"""Curves of runs as a picture, PNG or SVG, and as letters in the terminal."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limpid.errors import ConfigError
from limpid.history.curves import UNITS, Axis, Curve, Curves
from limpid.plots import PALETTE, panels, plain, save

MOST = len(PALETTE)
"""Runs in one picture: more colours cannot be told apart."""


def draw(runs: Sequence[Curves], along: Axis, file: Path) -> Path:
    """Loss, learning rate, gradient norm and speed of runs over each other.

    Raises  ConfigError for more runs than colours
    """
    require_few(runs)
    drawing, (loss, rate, norm, speed) = panels(4, 2, 5.6, 3.6)
    for curves, colour in zip(runs, PALETTE, strict=False):
        _loss(loss, curves, colour)
        for axes, curve in ((rate, curves.learning_rate), (norm, curves.grad_norm), (speed, curves.tokens_per_second)):
            axes.plot(curve.x, curve.y, color=colour, linewidth=1.0)
    windows = sorted({one.window for one in runs})
    mean = "" if windows == [1] else f", mean of {' and '.join(map(str, windows))} steps with its 95 % interval"
    plain(loss, f"loss{mean}; ○ held out", UNITS[along], "nats per token")
    plain(rate, "learning rate", UNITS[along])
    plain(norm, "gradient norm before clipping", UNITS[along])
    plain(speed, "speed", UNITS[along], "tokens/s")
    if all(_positive(one.grad_norm) for one in runs):
        norm.set_yscale("log")
    speed.set_ylim(bottom=0)
    loss.legend(fontsize=8, frameon=False)
    return save(drawing, file)


def _loss(axes: Any, curves: Curves, colour: str) -> None:
    mean = curves.mean_loss
    if curves.window > 1:
        axes.plot(curves.loss.x, curves.loss.y, color=colour, linewidth=0.5, alpha=0.25)
        axes.fill_between(mean.x, mean.low, mean.high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(mean.x, mean.y, color=colour, linewidth=1.4, label=curves.name)
    if curves.other_evals.keys() <= {"ema"}:  # else the first set stands there by its name
        axes.plot(curves.eval_loss.x, curves.eval_loss.y, "o", color=colour, markersize=4, markerfacecolor="white")
    for (name, one), marker in zip(curves.other_evals.items(), itertools.cycle("sD^v<>ph*X")):
        label = f"{curves.name}: {name}"
        axes.plot(one.x, one.y, marker, color=colour, markersize=4, markerfacecolor="white", label=label)


def _positive(curve: Curve) -> bool:
    return bool(len(curve.y)) and bool((curve.y[np.isfinite(curve.y)] > 0).all())


def in_letters(runs: Sequence[Curves], along: Axis, width: int, height: int, coloured: bool) -> str:
    """The mean losses of runs, drawn with Braille letters on so many columns and lines.

    Raises  ConfigError where plotille is not installed, and for more runs than colours
    """
    try:
        import plotille
    except ImportError as error:
        raise ConfigError("a picture in the terminal needs plotille: pip install 'limpid[plots]'") from error
    require_few(runs)
    figure = plotille.Figure()
    figure.width, figure.height = max(2, (width - 24) // TICK) * TICK, max(5, height)
    figure.with_colors, figure.color_mode, figure.origin = coloured, "names", False
    figure.x_label, figure.y_label = UNITS[along], "nats per token"
    figure.register_label_formatter(float, _tick)
    means = [_finite(one.mean_loss) for one in runs]
    for limits, count, values in (
        (figure.set_x_limits, figure.width // TICK, [mean.x for mean in means]),
        (figure.set_y_limits, figure.height, [mean.y for mean in means]),
    ):
        low, high = _round_limits(np.concatenate(values), count)
        limits(min_=low, max_=high)
    for curves, mean, colour in zip(runs, means, LETTERS, strict=False):
        figure.plot(mean.x, mean.y, lc=colour if coloured else None, label=curves.name)
        if len(runs) > 1 and not coloured and len(mean.x):
            figure.text(mean.x[-1:], mean.y[-1:], [curves.name])
    return str(figure.show(legend=len(runs) > 1 and coloured))


TICK = 10
"""Columns between two numbers of plotille's horizontal axis; its vertical one has a number on every line."""


def _finite(curve: Curve) -> Curve:
    kept = np.isfinite(curve.y)
    return Curve(curve.x[kept], curve.y[kept])


def _round_limits(values: np.ndarray, count: int) -> tuple[float, float]:
    """Limits that hold the values, so that `count` equal parts of what lies between begin at round numbers."""
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    power = 10.0 ** np.floor(np.log10(max(high - low, abs(high) * 1e-6, 1e-12) / count))
    for part in (step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 20)):
        start = np.floor(low / part) * part
        if start + part * count >= high:
            return float(start), float(start + part * count)
    raise AssertionError("the last part is 20 times a power of ten that is at least a tenth of what is needed")


LETTERS = ("blue", "red", "green", "magenta", "cyan", "yellow", "white", "bright_blue")


def _tick(value: float, chars: int, delta: float, left: bool = False) -> str:
    """A number beside an axis, as wide as the axis asks."""
    text = f"{value:.4g}"
    return text.ljust(chars) if left else text.rjust(chars)


def require_few(runs: Sequence[Curves]) -> None:
    """Raise ConfigError for more runs than there are colours."""
    if len(runs) > MOST:
        raise ConfigError(f"{len(runs)} runs were named, and {MOST} colours can be told apart: name fewer")
