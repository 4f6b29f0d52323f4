"""Muon: a matrix moves against its momentum with every singular value near 1, so that all directions move alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from jaxtyping import Float

from limpid.errors import ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch
from limpid.maths.random_rounding import student
from limpid.maths.rounding import unit_roundoff
from limpid.maths.update import Arrays, Index, UpdateInput, UpdateRule, global_norm

UNIT = unit_roundoff(ml_dtypes.bfloat16)
"""Of the format in which the engine multiplies, whatever the format of the parameters."""
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b, c of the odd polynomial a σ + b σ³ + c σ⁵ that brings singular values near 1. Source: Jordan et al. 2024."""
ROUNDS = 5
"""Of products, in an update."""
SAMPLES = 64
"""Departures that an estimated variance is the mean of, at least."""


@formula(
    r"X \leftarrow a X + (b\, X X^\top + c\, (X X^\top)^2) X, \quad X_0 = M / \lVert M \rVert_F",
    Branch.LINEAR_ALGEBRA,
    "Jordan et al. 2024 (Muon); cubic form, Björck & Bowie 1971, doi:10.1137/0708036",
)
def newton_schulz(
    m: Float[Array, "m n"],
    steps: int = ROUNDS,
    coefficients: tuple[float, float, float] = COEFFICIENTS,
    rounded: Callable[[Array], Array] = lambda product: product,
) -> Float[Array, "m n"]:
    """Bring every singular value near 1 by matrix products alone: a cheap approximation of UVᵀ.

    Takes   m             (m, n)
            steps         iterations; five bring singular values from 0.01‖M‖ up between 0.7 and 1.2
            coefficients  of the odd polynomial a σ + b σ³ + c σ⁵ that each step applies to every singular value
            rounded       what becomes of the quotient and each product, for looking at how rounding spreads
    Gives   (m, n)        the singular vectors stay as they are; (1.5, -0.5, 0) converges to UVᵀ exactly, but slowly
    Limits  zeros stay zeros
    Raises  ShapeError when m is no matrix
    """
    m = floats(m)
    if m.ndim != 2:
        raise ShapeError(f"m has shape {m.shape}: a matrix is needed")
    wide = m if m.shape[0] <= m.shape[1] else m.T  # the smaller product
    x = newton_schulz_rounds(rounded(wide / (global_norm({"m": m}) or 1.0)), steps, coefficients, rounded)
    return x if m.shape[0] <= m.shape[1] else x.T


def newton_schulz_rounds(
    x: Float[Array, "m n"],
    rounds: int,
    coefficients: tuple[float, float, float] = COEFFICIENTS,
    rounded: Callable[[Array], Array] = lambda product: product,
) -> Float[Array, "m n"]:
    """So many rounds of products on a matrix whose singular values are at most 1."""
    a, b, c = coefficients
    for _ in range(rounds):
        gram = rounded(x @ x.T)
        x = rounded(a * x + rounded(b * gram + c * gram @ gram) @ x)
    return x


@dataclass(frozen=True)
class Muon(UpdateRule):
    """Step against the momentum made orthogonal by five Newton–Schulz products; for matrices inside blocks.

    Scaled so that its entries move about as far as AdamW's would at the same learning rate, which both then share.
    """

    beta: float = 0.95

    moments = ("m",)
    equations: ClassVar[tuple[str, ...]] = (
        r"m \leftarrow \beta m + (1 - \beta) g",
        r"\tilde m = \beta m + (1 - \beta) g",
        r"X_0 = \tilde m / \lVert \tilde m \rVert_F",
        r"X_{k+1} = a X_k + (b\, X_k X_k^\top + c\, (X_k X_k^\top)^2) X_k, \quad k < 5",
        r"\theta \leftarrow (1 - \eta \lambda)\, \theta - 0.2\, \eta \sqrt{\max(rows, columns)}\, X_5",
    )
    source: ClassVar[str] = (
        "Jordan et al. 2024 (Muon); scale and decay, Liu et al. 2025, section 2.2, eq. 4, arXiv:2502.16982"
    )

    def as_used(self, decayed: bool) -> tuple[str, ...]:
        a, b, c = COEFFICIENTS
        return (*super().as_used(decayed), rf"a = {a:g}, \quad b = {b:g}, \quad c = {c:g}")

    def terms(self, x: UpdateInput) -> dict[str, Any]:
        m = self.beta * x.moments["m"] + (1 - self.beta) * x.gradient
        ahead = self.ahead(m, x.gradient)
        theta = (1 - x.learning_rate * self.decay(x)) * x.parameter
        direction = self.direction(ahead)
        rate = self.rate(x.learning_rate, x.parameter.shape)
        parameter = theta - rate * direction
        return {"m": m, "ahead": ahead, "theta": theta, "direction": direction, "rate": rate, "parameter": parameter}

    def ahead(self, m: Array, gradient: Array) -> Array:
        """Nesterov's look ahead: the momentum that the next step would have if the gradient stayed."""
        return self.beta * m + (1 - self.beta) * gradient

    def direction(self, ahead: Array) -> Array:
        """Where all directions of the momentum are alike."""
        return newton_schulz(ahead)

    def rate(self, learning_rate: float, shape: tuple[int, ...]) -> float:
        """What the orthogonal matrix is multiplied by: its entries have a root mean square of 1/√max(shape)."""
        return 0.2 * learning_rate * math.sqrt(max(shape))

    def rounding(self, x: UpdateInput) -> Arrays:
        terms = self.terms(x)
        moved = terms["rate"] * orthogonal_spread(terms["ahead"])
        new = {"parameter": np.abs(terms["parameter"]) + 2 * np.abs(x.parameter), "absolute": moved}
        return new | self.momentum_rounding(x)

    def momentum_rounding(self, x: UpdateInput) -> Arrays:
        """Error bound of the new moment alone."""
        return {"m": 4 * (self.beta * np.abs(x.moments["m"]) + (1 - self.beta) * np.abs(x.gradient))}

    def derivation(self, x: UpdateInput, at: Index) -> tuple[str, ...]:
        exact = (np.asarray(array, np.float64) for array in (x.parameter, x.gradient, x.moments["m"]))
        parameter, gradient, before = exact
        x = replace(x, parameter=parameter, gradient=gradient, moments={"m": before})
        terms, beta = self.terms(x), self.beta
        ahead, norm = terms["ahead"], float(np.linalg.norm(terms["ahead"])) or 1.0
        values = np.linalg.svd(ahead, compute_uv=False) / norm
        made = np.linalg.svd(terms["direction"], compute_uv=False)
        m, theta, direction = (float(terms[name][at]) for name in ("m", "theta", "direction"))
        g, rate = float(gradient[at]), terms["rate"]
        return (
            f"m = {beta:g} · {before[at]:.8g} + {1 - beta:.6g} · {g:.8g} = {m:.8g}",
            f"m̃ = {beta:g} · {m:.8g} + {1 - beta:.6g} · {g:.8g} = {ahead[at]:.8g}",
            f"X₀ = {ahead[at]:.8g} / {norm:.8g} = {ahead[at] / norm:.8g}   divided by the norm of all of m̃",
            f"X₅ = {direction:.8g}   five products bring singular values from {values[-1]:.3g} … {values[0]:.3g} "
            f"to {made[-1]:.3g} … {made[0]:.3g}",
            f"θ' = {parameter[at]:.8g} · (1 - {x.learning_rate:g} · {self.decay(x):g}) = {theta:.8g}",
            f"rate = 0.2 · {x.learning_rate:g} · √{max(parameter.shape)} = {rate:.8g}",
            f"θ = {theta:.8g} - {rate:.8g} · {direction:.8g} = {terms['parameter'][at]:.8g}",
        )


def orthogonal_spread(m: Float[Array, "m n"]) -> Float[Array, "m n"]:
    """How far each entry of `newton_schulz(m)` may stray when every product is rounded to bfloat16.

    Small singular values are raised some hundred times, and with them what rounding added: no bound of one product
    says how far. So the iteration is run with roundings drawn at random. The standard error of an entry is estimated
    from the departures in its row and in its column, the larger of the two.
    """
    rng = np.random.default_rng(0)

    def rounded(x: Array) -> Array:
        return x * (1 + UNIT * rng.uniform(-1, 1, x.shape))

    exact, square = newton_schulz(m), np.zeros(m.shape)
    passes = max(3, math.ceil(SAMPLES / min(m.shape)))
    for _ in range(passes):
        square += np.square(newton_schulz(rounded(m), rounded=rounded) - exact) / passes
    variance = np.maximum(square.mean(0, keepdims=True), square.mean(1, keepdims=True))
    return student(passes * min(m.shape), m.size) * np.sqrt(variance)
