"""The curve of `limpid plan rate` as text, as letters in the terminal, and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from limpid.errors import ConfigError
from limpid.planning.rate import RateCurve
from limpid.plots import FIRST, INK, SECOND, figure, plain, save


def lines(curve: RateCurve) -> Iterator[str]:
    """What was found, a line each, and what was not."""
    if curve.suggested is not None:
        yield f"suggested           {curve.suggested:<8.2g} --learning-rate {curve.suggested:.2g}"
    if curve.steepest is not None:
        yield f"steepest            {curve.steepest:<8.2g} where the loss falls most as the rate grows"
    if curve.stable is not None:
        until = f"{curve.unstable:.2g} is not" if curve.unstable is not None else "no limit was found"
        yield f"largest stable      {curve.stable:<8.2g} over {curve.stable_steps} steps from the start; {until}"
    yield f"lowest loss         {curve.lowest:<8.2g} {curve.mean.min():.3f} nats per token there"
    yield from (f"note: {note}" for note in curve.notes())


def in_letters(curve: RateCurve, width: int, height: int, coloured: bool) -> str:
    """The mean loss over the rate's power of ten, with Braille letters.

    Raises  ConfigError where plotille is not installed
    """
    try:
        import plotille
    except ImportError as error:
        raise ConfigError("a picture in the terminal needs plotille: pip install 'limpid[plots]'") from error
    drawn = plotille.Figure()
    drawn.width, drawn.height = max(20, (width - 24) // 10 * 10), height
    drawn.with_colors, drawn.color_mode, drawn.origin = coloured, "names", False
    drawn.x_label, drawn.y_label = "log10 rate", "loss"
    drawn.register_label_formatter(float, lambda value, chars, delta, left=False: f"{value:.4g}".ljust(chars)
                                   if left else f"{value:.4g}".rjust(chars))  # fmt: skip
    low, high = _range(curve)
    drawn.set_y_limits(low, high)
    drawn.plot(np.log10(curve.rates), np.minimum(curve.mean, high), lc="blue" if coloured else None)
    return str(drawn.show())


def _range(curve: RateCurve) -> tuple[float, float]:
    """The losses that a picture shows: what training brings, and half as much again above the start; no divergence."""
    low, high = float(curve.mean.min()), float(curve.losses[: max(1, len(curve.losses) // 10)].max())
    return low - 0.1 * (high - low), high + 0.5 * (high - low)


def draw(curve: RateCurve, file: Path) -> Path:
    """Losses, their mean with its interval, and what was found, over the rate."""
    drawing = figure(6.4, 4.0)
    axes = drawing.subplots()
    axes.plot(curve.rates, curve.losses, ".", color=FIRST, markersize=2, alpha=0.4)
    axes.fill_between(curve.rates, curve.low, curve.high, color=FIRST, alpha=0.25, linewidth=0)
    axes.plot(curve.rates, curve.mean, color=FIRST, linewidth=1.4)
    marks = (("suggested", curve.suggested, SECOND), ("largest stable", curve.stable, INK))
    for name, rate, colour in marks:
        if rate is not None:
            axes.axvline(rate, color=colour, linewidth=1.0, linestyle="--", label=f"{name} {rate:.2g}")
    axes.set_xscale("log")
    axes.set_ylim(*_range(curve))
    plain(axes, "loss along rising rates, its mean with 95 % interval", "learning rate", "nats per token")
    axes.legend(fontsize=8, frameon=False)
    return save(drawing, file)
