"""Pictures of a fitted law: how well it fits, and iso-FLOP curves with the best size on each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from limpid.planning.laws.fit import Fit
from limpid.planning.laws.scaling import Law
from limpid.plots import FIRST, INK, SECOND, panels, plain, save

CLOSE = 0.15
"""Runs whose compute differs by less than this share lie on one iso-FLOP curve."""
MOST = 6
"""Curves in one picture."""


def draw_fit(fit: Fit, folder: Path) -> list[Path]:
    """fit.png and isoflop.png in a folder."""
    from matplotlib import colormaps

    drawing, (left, right) = panels(2, 2, 4.6, 3.6)
    _against(left, fit)
    _frontier(right, fit)
    written = [save(drawing, folder / "fit.png")]
    drawing, (axes,) = panels(1, 1, 6.4, 4.4)
    _iso_flop(axes, fit, colormaps["viridis"])
    return [*written, save(drawing, folder / "isoflop.png")]


def _against(axes: Any, fit: Fit) -> None:
    """Fitted against measured losses."""
    fitted = fit.law.loss(fit.points.parameters, fit.points.tokens)
    ends = [min(fitted.min(), fit.points.loss.min()), max(fitted.max(), fit.points.loss.max())]
    axes.plot(ends, ends, color=INK, linewidth=0.8, label="equal")
    axes.scatter(fit.points.loss, fitted, s=16, color=FIRST, zorder=3)
    off = np.sqrt(np.mean((np.log(fitted) - np.log(fit.points.loss)) ** 2))
    plain(axes, f"the fit is off by {100 * off:.2f} % (root mean square)", "measured loss, nats/token",
          "fitted loss, nats/token")  # fmt: skip


def _frontier(axes: Any, fit: Fit) -> None:
    """The best size for each compute, with its interval, and where the runs were."""
    runs = 6 * fit.points.parameters * fit.points.tokens
    compute = np.geomspace(runs.min() / 2, runs.max() * 100, 60)
    best = np.array([fit.law.optimum(c)[0] for c in compute])
    if len(fit.resampled):
        drawn = np.array([[law.optimum(c)[0] for c in compute] for law in map(Law.of, fit.resampled)])
        low, high = np.quantile(drawn, [(1 - fit.level) / 2, (1 + fit.level) / 2], axis=0)
        label = f"{100 * fit.level:g} % interval"
        axes.fill_between(compute, low, high, color=FIRST, alpha=0.2, linewidth=0, label=label)
    axes.plot(compute, best, color=FIRST, linewidth=1.4, label="best size")
    axes.scatter(runs, fit.points.parameters, s=12, color=SECOND, zorder=3, label="runs")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(fontsize=8, frameon=False)
    plain(axes, f"best N grows as C^{fit.law.exponent:.2f}", "training compute C = 6 N D, FLOP", "parameters N")


def _iso_flop(axes: Any, fit: Fit, colours: Any) -> None:
    """Loss against size at equal compute: the curve, its minimum, and the runs that lie on it."""
    points = fit.points
    compute = 6 * points.parameters * points.tokens
    groups = budgets(compute)
    span = np.geomspace(points.parameters.min() / 2, points.parameters.max() * 2, 200)
    for number, members in enumerate(groups):
        c = float(np.exp(np.log(compute[members]).mean()))
        colour = colours(0.85 * number / max(1, len(groups) - 1))
        sizes = span[(span > points.parameters[members].min() / 3) & (span < points.parameters[members].max() * 3)]
        axes.plot(sizes, fit.law.loss(sizes, c / 6 / sizes), color=colour, linewidth=1.3, label=f"{c:.2g} FLOP")
        axes.scatter(points.parameters[members], points.loss[members], s=16, color=colour, zorder=3)
        n, d = fit.law.optimum(c)
        axes.plot([n], [fit.law.loss(n, d)], marker="*", markersize=11, color=SECOND, zorder=4)
    axes.set_xscale("log")
    axes.legend(fontsize=8, frameon=False, title="6 N D", title_fontsize=8)
    plain(axes, "loss at equal compute; ★ the best size", "parameters N", "loss, nats/token")


def budgets(compute: np.ndarray) -> list[np.ndarray]:
    """Indices of runs of about equal compute, in order; where no two are, equal parts of all."""
    order = np.argsort(compute)
    cuts = np.flatnonzero(np.diff(np.log(compute[order])) > CLOSE) + 1
    groups = [group for group in np.split(order, cuts) if len(group) > 1]
    if not groups:
        groups = [group for group in np.array_split(order, min(MOST, len(order) // 2)) if len(group)]
    if len(groups) > MOST:
        groups = [groups[i] for i in np.linspace(0, len(groups) - 1, MOST).round().astype(int)]
    return groups
