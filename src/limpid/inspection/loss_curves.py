"""The loss along random directions through the trained weights, as long as the weights themselves.

Source: Li et al. 2018, section 4, arXiv:1712.09913, whose filters are the rows of our matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from limpid.inspection.hessian import ROWS_AT_ONCE, DifferentiableLoss, flatten
from limpid.plots import FIRST, SECOND, figure, plain, save
from limpid.reporter import SILENT, Reporter

Array = np.ndarray
POINTS_ALONG, POINTS_ACROSS = 21, 11


@dataclass(frozen=True)
class LossCurves:
    """DifferentiableLoss, nats per token, at the weights plus multiples of two directions."""

    at: Float[Array, " point"]  # multiples, from -1 to 1
    along: Float[Array, "direction point"]
    surface_at: Float[Array, " side"]
    surface: Float[Array, "second first"]
    rows: int  # that `along` is measured on
    surface_rows: int


def direction(loss: DifferentiableLoss, seed: int) -> Float[Tensor, " parameter"]:
    """A random direction whose rows are as long as the weights' rows; gains and biases stay where they are."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for weight in loss.parameters.values():
        random = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        if weight.ndim < 2:
            parts.append(torch.zeros_like(random))
        else:
            lengths = weight.detach().norm(dim=-1, keepdim=True)
            parts.append(random * lengths / random.norm(dim=-1, keepdim=True))
    return flatten(parts)


def loss_curves(loss: DifferentiableLoss, seed: int = 0, reporter: Reporter = SILENT) -> LossCurves:
    """Two directions one by one, and both at once on fewer rows and points."""
    start, directions = loss.point, [direction(loss, seed), direction(loss, seed + 1)]
    at, across = np.linspace(-1, 1, POINTS_ALONG), np.linspace(-1, 1, POINTS_ACROSS)
    places = [(a, 0.0) for a in at] + [(0.0, b) for b in at] + [(a, b) for b in across for a in across]
    values = []
    for number, (a, b) in enumerate(places):
        rows = slice(None) if number < 2 * POINTS_ALONG else slice(ROWS_AT_ONCE)
        values.append(loss.value(start + float(a) * directions[0] + float(b) * directions[1], rows))
        reporter.progress("losses around the weights", number + 1, len(places))
    along = np.array(values[: 2 * POINTS_ALONG]).reshape(2, POINTS_ALONG)
    surface = np.array(values[2 * POINTS_ALONG :]).reshape(POINTS_ACROSS, POINTS_ACROSS)
    return LossCurves(at, along, across, surface, len(loss.inputs), min(ROWS_AT_ONCE, len(loss.inputs)))


def draw_along(curves: LossCurves, file: Path) -> Path:
    """Both one-dimensional curves."""
    drawing = figure(6.0, 3.6)
    axis = drawing.subplots()
    for number, (values, color) in enumerate(zip(curves.along, (FIRST, SECOND), strict=True), start=1):
        axis.plot(curves.at, values, color=color, linewidth=1.4, marker=".", label=f"direction {number}")
    axis.legend(fontsize=8, frameon=False)
    plain(axis, "the loss along two random directions", "step, in lengths of the weights' rows", "nats per token")
    return save(drawing, file)


def draw_surface(curves: LossCurves, file: Path) -> Path:
    """The two-dimensional surface as filled contours, the trained weights in the middle."""
    drawing = figure(5.6, 4.4)
    axis = drawing.subplots()
    filled = axis.contourf(curves.surface_at, curves.surface_at, curves.surface, levels=24, cmap="viridis")
    axis.plot(0, 0, marker="+", color="white", markersize=10)
    plain(axis, "the loss over two random directions", "step along direction 1", "step along direction 2")
    axis.grid(False)
    bar = drawing.colorbar(filled, ax=axis)
    bar.set_label("nats per token", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return save(drawing, file)
