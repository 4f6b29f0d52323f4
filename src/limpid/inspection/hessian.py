"""The loss's Hessian: products with it, the ends of its spectrum, and how its eigenvalues are spread.

A product is exact: H v is the gradient of (gradient · v) (Pearlmutter 1994, doi:10.1162/neco.1994.6.1.147).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call

from limpid.inspection.forward_pass import cast_model
from limpid.maths.foundations import lanczos, spectral_density
from limpid.maths.foundations.curvature import Ritz
from limpid.model import Transformer
from limpid.objectives.losses import log_probabilities, next_token_loss
from limpid.plots import FIRST, figure, plain, save
from limpid.reporter import SILENT, Reporter

ROWS_AT_ONCE = 4
"""Rows that go through the model at once."""


class DifferentiableLoss:
    """Mean loss of fixed rows, nats per token, as a function of all parameters as one vector."""

    def __init__(
        self,
        model: Transformer,
        inputs: Int[Tensor, "row position"],
        targets: Int[Tensor, "row position"],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = cast_model(model, dtype)
        self.parameters = dict(self.model.named_parameters())
        self.inputs, self.targets = inputs, targets

    @property
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters.values())

    @property
    def point(self) -> Float[Tensor, " parameter"]:
        """The parameters as they are."""
        return flatten(self.parameters.values()).detach()

    def value(self, point: Float[Tensor, " parameter"] | None = None, rows: slice = slice(None)) -> float:
        """The loss there, on some of the rows."""
        parameters = self.parameters if point is None else self.split(point)
        with torch.no_grad():
            parts = [float(part) for part in self._parts(parameters, rows)]
        return sum(parts)

    def gradient(self, rows: slice = slice(None)) -> Float[Tensor, " parameter"]:
        """Its gradient at the parameters as they are."""
        total = torch.zeros_like(self.point)
        for part in self._parts(self.parameters, rows):
            total += flatten(torch.autograd.grad(part, list(self.parameters.values())))
        return total

    def product(self, v: Float[Tensor, " parameter"]) -> Float[Tensor, " parameter"]:
        """H v at the parameters as they are."""
        learned = list(self.parameters.values())
        direction = list(self.split(v).values())
        total = torch.zeros_like(v)
        for part in self._parts(self.parameters, slice(None)):
            gradients = torch.autograd.grad(part, learned, create_graph=True)
            along = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
            total += flatten(torch.autograd.grad(cast(Tensor, along), learned))
        return total

    def numpy_product(self) -> Callable[[Any], Any]:
        """v ↦ H v for limpid.maths.lanczos."""
        dtype = self.point.dtype

        def product(v: Any) -> Any:
            return self.product(torch.as_tensor(v).to(dtype)).double().numpy()

        return product

    def split(self, vector: Float[Tensor, " parameter"]) -> dict[str, Tensor]:
        """One long vector as the arrays of the parameters."""
        sizes = [parameter.numel() for parameter in self.parameters.values()]
        return {
            name: part.view(parameter.shape)
            for (name, parameter), part in zip(self.parameters.items(), vector.split(sizes), strict=True)
        }

    def _parts(self, parameters: dict[str, Any], rows: slice) -> Iterator[Float[Tensor, ""]]:
        """The loss of a few rows at a time, each with its share of the mean."""
        inputs, targets = self.inputs[rows], self.targets[rows]
        for some, after in zip(inputs.split(ROWS_AT_ONCE), targets.split(ROWS_AT_ONCE), strict=True):
            logits = functional_call(self.model, parameters, (some,), {"path": "plain"})
            yield next_token_loss(log_probabilities(logits), after, targets.numel())


def flatten(tensors: Any) -> Float[Tensor, " parameter"]:
    """Arrays as one long vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


Array = np.ndarray
STEPS, STARTS = 20, 2
MEMORY = 2 << 30
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
    loss: DifferentiableLoss, seed: int = 0, steps: int = STEPS, starts: int = STARTS, reporter: Reporter = SILENT
) -> Sharpness:
    """A few Lanczos runs from random starts."""
    steps = min(steps, max(4, MEMORY // (8 * loss.size)), loss.size)
    rng, product, done = np.random.default_rng(seed), loss.numpy_product(), 0

    def counted(v: Array) -> Array:
        nonlocal done
        result = product(v)
        done += 1
        reporter.progress("products with the Hessian", done, steps * starts)
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


def draw_density(curvature: Sharpness, file: Path) -> Path:
    """The density of eigenvalues, logarithmic: nearly all lie near 0, the few that matter far out."""
    at, density = curvature.density()
    drawing = figure(6.4, 3.6)
    axis = drawing.subplots()
    axis.semilogy(at, np.maximum(density, FLOOR * density.max()), color=FIRST, linewidth=1.4)
    axis.set_ylim(FLOOR * density.max(), 3 * density.max())
    for value, side in ((curvature.largest, "right"), (curvature.smallest, "left")):
        axis.axvline(value, color="#999999", linewidth=0.8, linestyle="--")
        axis.annotate(
            f"{value:.3g}", (value, density.max()), fontsize=8, ha=side, xytext=(-4 if side == "right" else 4, 0),
            textcoords="offset points",
        )  # fmt: skip
    title = f"Hessian of the loss: {len(curvature.runs)} Lanczos runs of {curvature.steps} steps"
    plain(axis, title, "eigenvalue, nats per squared length of the parameters", "density of eigenvalues")
    return save(drawing, file)
