"""The ends of the Hessian's spectrum, and how its eigenvalues are spread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from limpid.inspect.hvp import Loss
from limpid.maths.foundations import lanczos, spectral_density
from limpid.maths.foundations.curvature import Ritz
from limpid.plots import FIRST, figure, plain, save
from limpid.progress import Report

Array = np.ndarray[Any, Any]
STEPS, STARTS = 20, 2
ROOM = 2 << 30
"""Bytes that the directions of one Lanczos run may take: models too large for 20 get fewer."""
FLOOR = 1e-7
"""Share of the highest density below which the picture ends."""


@dataclass(frozen=True)
class Sharpness:
    """Eigenvalues of the loss's Hessian, in nats per token per squared length of the parameters."""

    largest: float
    largest_within: float  # an eigenvalue lies within this of `largest`: Lanczos's residual, or the products' rounding
    smallest: float
    smallest_within: float
    mean: float  # over all eigenvalues, estimated from the starts
    steps: int  # Lanczos steps, each a product with the Hessian
    runs: tuple[Ritz, ...]

    @property
    def stable_rate(self) -> float:
        """2/λ: the learning rate at which plain gradient descent stops being stable in the steepest direction."""
        return 2 / self.largest if self.largest > 0 else float("inf")

    def density(self, points: int = 400) -> tuple[Float[Array, " point"], Float[Array, " point"]]:
        """Eigenvalues and the density there."""
        lowest, highest = min(run.values[0] for run in self.runs), max(run.values[-1] for run in self.runs)
        spread = max(highest - lowest, 1e-12)
        at = np.linspace(lowest - 0.05 * spread, highest + 0.05 * spread, points)
        return at, spectral_density(list(self.runs), at, spread / 100)


def sharpness(
    loss: Loss, seed: int = 0, steps: int = STEPS, starts: int = STARTS, report: Report | None = None
) -> Sharpness:
    """A few Lanczos runs from random starts."""
    steps = min(steps, max(4, ROOM // (8 * loss.size)), loss.size)
    rng, product, done = np.random.default_rng(seed), loss.numpy_product(), 0

    def counted(v: Array) -> Array:
        nonlocal done
        result = product(v)
        done += 1
        if report is not None:
            report("products with the Hessian", done, steps * starts)
        return result

    runs = tuple(lanczos(counted, rng.standard_normal(loss.size), steps) for _ in range(starts))
    top = max(runs, key=lambda run: float(run.values[-1]))
    bottom = min(runs, key=lambda run: float(run.values[0]))
    mean = float(np.mean([run.weights @ run.values for run in runs]))
    rounding = torch.finfo(loss.point.dtype).eps * max(abs(float(top.values[-1])), abs(float(bottom.values[0])))
    return Sharpness(
        float(top.values[-1]),
        max(float(top.residuals[-1]), rounding),
        float(bottom.values[0]),
        max(float(bottom.residuals[0]), rounding),
        mean,
        steps,
        runs,
    )


def draw(found: Sharpness, file: Path) -> Path:
    """The density of eigenvalues, logarithmic: nearly all lie near 0, the few that matter far out."""
    at, density = found.density()
    drawing = figure(6.4, 3.6)
    axis = drawing.subplots()
    axis.semilogy(at, np.maximum(density, FLOOR * density.max()), color=FIRST, linewidth=1.4)
    axis.set_ylim(FLOOR * density.max(), 3 * density.max())
    for value, side in ((found.largest, "right"), (found.smallest, "left")):
        axis.axvline(value, color="#999999", linewidth=0.8, linestyle="--")
        axis.annotate(
            f"{value:.3g}", (value, density.max()), fontsize=8, ha=side, xytext=(-4 if side == "right" else 4, 0),
            textcoords="offset points",
        )  # fmt: skip
    title = f"Hessian of the loss: {len(found.runs)} Lanczos runs of {found.steps} steps"
    plain(axis, title, "eigenvalue, nats per squared length of the parameters", "density of eigenvalues")
    return save(drawing, file)
