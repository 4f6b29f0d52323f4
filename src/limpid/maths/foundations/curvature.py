"""Curvature of a loss, seen only through products with its Hessian; and the noise of its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError, ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch

Product = Callable[[Array], Array]
"""v ↦ H v for a symmetric H."""


class Ritz(NamedTuple):
    """What Lanczos knows of a symmetric matrix: where its eigenvalues lie, and how many lie there."""

    values: Array  # (step,)  approximate eigenvalues, smallest first
    weights: Array  # (step,)  share of the starting vector in each, summing to 1
    residuals: Array  # (step,)  how far from an eigenvalue each may lie at most


@formula(
    r"H Q_k = Q_k T_k + \beta_k q_{k+1} e_k^\top",
    Branch.LINEAR_ALGEBRA,
    "Lanczos 1950, doi:10.6028/jres.045.026; weights as in Golub & Welsch 1969",
)
def lanczos(product: Product, start: Float[Array, " n"], steps: int) -> Ritz:
    """Approximate the extreme eigenvalues of a symmetric matrix, and its spectrum, from a few products with it.

    Takes   product  v ↦ H v
            start    (n,)  any vector but 0; a random one sees every eigenvalue
            steps    products to spend; n give all eigenvalues
    Gives   values, weights and residuals; an eigenvalue lies within each residual of its value
    Limits  stops early when the products have seen all there is to see from `start`
    Raises  DomainError when start is 0 or steps < 1
    """
    start = floats(start)
    length = float(np.linalg.norm(start))
    if not length > 0 or steps < 1:
        raise DomainError(f"start has length {length:g}, steps is {steps}: both must be above 0")
    steps = min(steps, start.size)
    basis = np.empty((steps, start.size))
    basis[0] = start / length
    diagonal: list[float] = []
    beside: list[float] = []
    for step in range(steps):
        known = basis[: step + 1]
        w = floats(product(basis[step]))
        diagonal.append(float(basis[step] @ w))
        for _ in range(2):  # orthogonal to all before, twice: rounding would bring lost directions back
            w = w - (known @ w) @ known
        beside.append(float(np.linalg.norm(w)))
        scale = max(abs(entry) for entry in (*diagonal, *beside))
        if beside[-1] <= 1e-12 * scale or step + 1 == steps:
            break
        basis[step + 1] = w / beside[-1]
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1))
    return Ritz(values, np.square(vectors[0]), np.abs(beside[-1] * vectors[-1]))


@formula(
    r"\phi(\lambda) = \tfrac1n \sum_i \delta(\lambda - \lambda_i) \approx \tfrac1m \sum_{v} \sum_k w_k^{(v)} "
    r"\mathcal N(\lambda; \theta_k^{(v)}, s^2)",
    Branch.LINEAR_ALGEBRA,
    "Ghorbani, Krishnan & Xiao 2019, section 2.2, arXiv:1901.10159",
)
def spectral_density(ritz: list[Ritz], at: Float[Array, " point"], width: float) -> Float[Array, " point"]:
    """How a symmetric matrix's eigenvalues are spread, from Lanczos runs that started at random vectors.

    Takes   ritz   one per random start
            at     (point,)  where to evaluate
            width  s of the bell that stands for each value
    Gives   density (point,), integrating to 1
    Raises  DomainError when there is no run or the width is not above 0
    """
    if not ritz or not width > 0:
        raise DomainError(f"{len(ritz)} Lanczos runs, width {width}: both must be above 0")
    at = floats(at)[:, None]
    bells = [
        (run.weights * np.exp(-0.5 * np.square((at - run.values) / width))).sum(-1) / (width * np.sqrt(2 * np.pi))
        for run in ritz
    ]
    density: Array = np.mean(bells, 0)
    return density


class NoiseScale(NamedTuple):
    """How noisy a mini-batch gradient is."""

    scale: float  # examples: batch size at which noise and signal are equal
    gradient_squared: float  # |G|², of the true gradient, unbiased
    variance: float  # tr Σ, of one example's gradient, unbiased


@formula(
    r"\mathcal B = \frac{\operatorname{tr} \Sigma}{|G|^2}, \quad "
    r"\mathbb E |G_b|^2 = |G|^2 + \tfrac1b \operatorname{tr} \Sigma",
    Branch.PROBABILITY,
    "McCandlish et al. 2018, eq. 2.9 and appendix A.1, arXiv:1812.06162",
)
def gradient_noise_scale(gradients: Float[Array, "part d"], batch_size: int) -> NoiseScale:
    """From the gradients of equal parts of a batch: how much larger batches still help.

    Takes   gradients   (part, d)  mean gradient of each part
            batch_size  examples per part
    Gives   scale in examples, |G|² and tr Σ; the variance of a mean over b examples is tr Σ / b
    Limits  parts that agree exactly give 0; a true gradient of 0 gives ∞
    Raises  DomainError with fewer than two parts or a batch_size below 1
    """
    gradients = floats(gradients)
    if gradients.ndim != 2:
        raise ShapeError(f"gradients have shape {gradients.shape}: one row per part is needed")
    parts = len(gradients)
    if parts < 2 or batch_size < 1:
        raise DomainError(f"{parts} parts of {batch_size}: two parts of one example are the least")
    mean = gradients.mean(0)
    variance = batch_size * float(np.square(gradients - mean).sum()) / (parts - 1)
    squared = float(mean @ mean) - variance / (parts * batch_size)
    scale = variance / squared if squared > 0 else (np.inf if variance > 0 else 0.0)
    return NoiseScale(scale, squared, variance)
