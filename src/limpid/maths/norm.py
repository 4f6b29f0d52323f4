"""Norms: each vector brought to a standard size, then each feature given its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Real

from limpid.config.domain import NotNegative
from limpid.errors import DomainError, ShapeError
from limpid.maths.given import given
from limpid.maths.operation import Array, Branch, Operation, Shape, in_latex, require, require_shape

WAY_OUT = "d_model and the checkpoint disagree"


def _in_numbers(line: str, eps: float, width: int) -> str:
    """A line about vectors of d features: with their number, and ε where there is one."""
    of_eps = f" + {in_latex(eps)}" if eps else ""
    return line.replace(r" + \varepsilon", of_eps).replace(r"\tfrac1d", rf"\tfrac{{1}}{{{width}}}")


class SavedRMS(NamedTuple):
    x_hat: Array  # (..., d)  x / r
    r: Array  # (..., 1)  root mean square of each vector
    weight: Array  # (d,)


@dataclass(frozen=True)
class RMSNorm(Operation):
    """Scale each vector to unit root mean square, then each feature by its own gain.

    Takes   x       (..., d)  residual stream, or one head's query or key
            weight  (d,)      gain γ, dimensionless, learned
    Gives   y       (..., d)  in the unit of γ: the scale of x is gone
    Saves   x̂ and r, which the forward pass has anyway
    Limits  x = 0 gives y = 0; the gradient there is γ ȳ / √ε, large but finite
    Raises  ShapeError when weight has not the last dimension of x
    """

    eps: NotNegative = 1e-6  # ε, unit of x²

    equation = r"y_i = \gamma_i \hat x_i, \quad \hat x_i = x_i / r, \quad r^2 = \tfrac1d \sum_j x_j^2 + \varepsilon"
    adjoint = (
        r"\bar x_i = \tfrac1r \bigl(\gamma_i \bar y_i - \hat x_i \tfrac1d \sum_j \gamma_j \bar y_j \hat x_j\bigr)",
        r"\bar\gamma_i = \sum_{\text{vectors}} \bar y_i \hat x_i",
    )
    source = "Zhang & Sennrich 2019, eq. 4, arXiv:1910.07467; ε inside the root"
    branch = Branch.LINEAR_ALGEBRA

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        return _in_numbers(line, self.eps, shapes[0][-1])

    def forward(self, x: Float[Array, "... d"], weight: Float[Array, " d"]) -> tuple[Array, SavedRMS]:
        require_shape("weight", weight, x.shape[-1:], WAY_OUT)
        r = _root_mean_square(x, self.eps)
        x_hat = x / r
        return weight * x_hat, SavedRMS(x_hat, r, weight)

    def backward(self, y_bar: Float[Array, "... d"], saved: SavedRMS) -> tuple[Array, Array]:
        x_hat, r, weight = saved
        x_hat_bar = weight * y_bar  # y = weight · x̂
        along_x = (x_hat_bar * x_hat).mean(-1, keepdims=True)  # r moves with x: ∂r/∂x_j = x̂_j / d
        x_bar = (x_hat_bar - x_hat * along_x) / r
        weight_bar = _over_vectors(y_bar * x_hat)  # shared by all vectors
        return x_bar, weight_bar

    def on_the_way(self, saved: SavedRMS) -> Array:
        return saved.x_hat.shape[-1] * np.square(saved.r)  # Σ x²

    def rounding(self, x: Array, weight: Array) -> Array:
        y, _ = self.forward(x, weight)
        return (x.shape[-1] / 2 + 6) * np.abs(y)  # Σ x²: d roundings, halved by the root; root, quotient, gain

    def backward_rounding(self, y_bar: Array, saved: SavedRMS) -> tuple[Array, Array]:
        x_hat, r, weight = saved
        d, x_hat_bar = x_hat.shape[-1], np.abs(weight * y_bar)
        magnitude = (x_hat_bar + np.abs(x_hat) * (x_hat_bar * np.abs(x_hat)).mean(-1, keepdims=True)) / r
        vectors = x_hat.size // d
        return (2.5 * d + 20) * magnitude, (vectors + d / 2 + 8) * _over_vectors(np.abs(y_bar * x_hat))


class SavedLayer(NamedTuple):
    x_hat: Array  # (..., d)  (x - μ) / σ
    sigma: Array  # (..., 1)  standard deviation of each vector
    weight: Array  # (d,)
    condition: Array  # (..., 1)  how much |x| exceeds its deviation from the mean: cancellation in x - μ


@dataclass(frozen=True)
class LayerNorm(Operation):
    """Bring each vector to mean 0 and variance 1, then each feature to its own gain and offset.

    Takes   x       (..., d)  residual stream
            weight  (d,)      gain γ, dimensionless, learned
            bias    (d,)      offset β, in the unit of γ, learned
    Gives   y       (..., d)  in the unit of γ: mean and scale of x are gone
    Saves   x̂ and σ, which the forward pass has anyway
    Limits  a constant vector gives y = β; the gradient there is at most |γ ȳ| / √ε
    Raises  ShapeError when weight or bias has not the last dimension of x
    """

    eps: NotNegative = 1e-5  # ε, unit of x²

    equation = (
        r"y_i = \gamma_i \hat x_i + \beta_i, \quad \hat x_i = (x_i - \mu) / \sigma, \quad "
        r"\mu = \tfrac1d \sum_j x_j, \quad \sigma^2 = \tfrac1d \sum_j (x_j - \mu)^2 + \varepsilon"
    )
    adjoint = (
        r"\bar x_i = \tfrac1\sigma \bigl(\gamma_i \bar y_i - \tfrac1d \sum_j \gamma_j \bar y_j "
        r"- \hat x_i \tfrac1d \sum_j \gamma_j \bar y_j \hat x_j\bigr)",
        r"\bar\gamma_i = \sum_{\text{vectors}} \bar y_i \hat x_i",
        r"\bar\beta_i = \sum_{\text{vectors}} \bar y_i",
    )
    source = "Ba, Kiros & Hinton 2016, eq. 3, arXiv:1607.06450; ε inside the root"
    branch = Branch.LINEAR_ALGEBRA

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        line = line if len(shapes) > 2 else line.replace(r" + \beta_i", "")
        return _in_numbers(line, self.eps, shapes[0][-1])

    def forward(
        self, x: Float[Array, "... d"], weight: Float[Array, " d"], bias: Float[Array, " d"]
    ) -> tuple[Array, SavedLayer]:
        require_shape("weight", weight, x.shape[-1:], WAY_OUT)
        require_shape("bias", bias, x.shape[-1:], WAY_OUT)
        if not x.shape[-1]:
            raise ShapeError(f"x has shape {x.shape}: a vector without entries has no mean")
        centred = x - x.mean(-1, keepdims=True)
        sigma = _root_mean_square(centred, self.eps)
        x_hat = centred / sigma
        condition = np.abs(x).max(-1, keepdims=True) / sigma
        return weight * x_hat + bias, SavedLayer(x_hat, sigma, weight, condition)

    def backward(self, y_bar: Float[Array, "... d"], saved: SavedLayer) -> tuple[Array, Array, Array]:
        x_hat, sigma, weight, _ = saved
        x_hat_bar = weight * y_bar  # y = weight · x̂ + bias
        mean_bar = x_hat_bar.mean(-1, keepdims=True)  # μ moves with every x: ∂μ/∂x_j = 1 / d
        along_x = (x_hat_bar * x_hat).mean(-1, keepdims=True)  # σ moves with x: ∂σ/∂x_j = x̂_j / d
        x_bar = (x_hat_bar - mean_bar - x_hat * along_x) / sigma
        return x_bar, _over_vectors(y_bar * x_hat), _over_vectors(y_bar)

    def on_the_way(self, saved: SavedLayer) -> Array:
        return saved.x_hat.shape[-1] * np.square(saved.sigma)  # Σ (x - μ)²

    def rounding(self, x: Array, weight: Array, bias: Array) -> Array:
        y, saved = self.forward(x, weight, bias)
        d = x.shape[-1]
        shift = d * saved.condition  # x - μ inherits the error of μ, relative to σ
        relative = shift + (d / 2 + 6 + 2 * shift) * np.abs(saved.x_hat)
        return np.abs(weight) * relative + 2 * (np.abs(y) + np.abs(bias))

    def backward_rounding(self, y_bar: Array, saved: SavedLayer) -> tuple[Array, Array, Array]:
        x_hat, sigma, weight, condition = saved
        d, x_hat_bar = x_hat.shape[-1], np.abs(weight * y_bar)
        along_x = (x_hat_bar * (np.abs(x_hat) + 1)).mean(-1, keepdims=True)
        magnitude = (x_hat_bar + x_hat_bar.mean(-1, keepdims=True) + (np.abs(x_hat) + 1) * along_x) / sigma
        vectors = x_hat.size // d
        x_hat_error = vectors + d / 2 + 8 + d * condition
        return (
            (3 * d + 20) * (1 + condition) * magnitude,
            _over_vectors(np.abs(y_bar) * x_hat_error * (np.abs(x_hat) + 1)),
            (vectors + 2) * _over_vectors(np.abs(y_bar)),
        )


class SavedBatch(NamedTuple):
    x_hat: Array  # (example, d)  (x - μ) / σ
    sigma: Array  # (d,)
    weight: Array  # (d,)
    of_batch: bool  # whether μ and σ came from this batch, and so move with x
    condition: Array  # (d,)  how much |x| exceeds its deviation from the mean


@dataclass(frozen=True)
class BatchNorm(Operation):
    """Bring each feature to mean 0 and variance 1 over the examples of a batch, then to its own gain and offset.

    Takes   x       (example, d)
            weight  (d,)  gain γ, dimensionless, learned
            bias    (d,)  offset β, in the unit of γ, learned
            mean    (d,)  of earlier batches; both left out while training
            var     (d,)  of earlier batches, see `running`
    Gives   y       (example, d)
    Saves   x̂ and σ, which the forward pass has anyway
    Limits  with running statistics each example stands for itself, and the map is linear; one example alone gives β
    Raises  ShapeError when a vector has not the last dimension of x
    """

    eps: NotNegative = 1e-5  # ε, unit of x²

    equation = (
        r"y_{ni} = \gamma_i \hat x_{ni} + \beta_i, \quad \hat x_{ni} = (x_{ni} - \mu_i) / \sigma_i, \quad "
        r"\mu_i = \tfrac1N \sum_n x_{ni}, \quad \sigma_i^2 = \tfrac1N \sum_n (x_{ni} - \mu_i)^2 + \varepsilon"
    )
    adjoint = (
        r"\bar x_{ni} = \tfrac{\gamma_i}{\sigma_i} \bigl(\bar y_{ni} - \tfrac1N \sum_m \bar y_{mi} "
        r"- \hat x_{ni} \tfrac1N \sum_m \bar y_{mi} \hat x_{mi}\bigr)",
        r"\bar\gamma_i = \sum_n \bar y_{ni} \hat x_{ni}",
        r"\bar\beta_i = \sum_n \bar y_{ni}",
        r"",
        r"",
    )
    source = "Ioffe & Szegedy 2015, algorithm 1, arXiv:1502.03167"
    branch = Branch.PROBABILITY

    def forward(
        self,
        x: Float[Array, "example d"],
        weight: Float[Array, " d"],
        bias: Float[Array, " d"],
        mean: Real[Array, " d"] | None = None,
        var: Real[Array, " d"] | None = None,
    ) -> tuple[Array, SavedBatch]:
        for name, vector in (("weight", weight), ("bias", bias), ("mean", mean), ("var", var)):
            if vector is not None:
                require_shape(name, vector, x.shape[-1:], "one entry per feature")
        if (mean is None) != (var is None):
            raise ShapeError("mean and var belong together: give both to evaluate, neither to train")
        centred = x - (x.mean(0) if mean is None else mean)
        sigma = _root_mean_square(centred.T, self.eps)[:, 0] if var is None else np.sqrt(var + self.eps)
        x_hat = centred / sigma
        condition = np.abs(x).max(0) / sigma
        return weight * x_hat + bias, SavedBatch(x_hat, sigma, weight, var is None, condition)

    def backward(self, y_bar: Float[Array, "example d"], saved: SavedBatch) -> tuple[Array | None, ...]:
        x_hat, sigma, weight, of_batch, _ = saved
        x_bar = weight * y_bar / sigma
        if not of_batch:
            return x_bar, (y_bar * x_hat).sum(0), y_bar.sum(0), None, None
        mean_bar = y_bar.mean(0)  # μ moves with every example: ∂μ/∂x_n = 1 / N
        along_x = (y_bar * x_hat).mean(0)  # σ moves with them: ∂σ/∂x_n = x̂_n / N
        return weight / sigma * (y_bar - mean_bar - x_hat * along_x), (y_bar * x_hat).sum(0), y_bar.sum(0)

    def running(self, mean: Array, var: Array, x: Array, momentum: float = 0.1) -> tuple[Array, Array]:
        """Running statistics after one more batch; the variance is counted over n - 1, as PyTorch does.

        Raises  DomainError for a batch of one example, which has no variance
        """
        require(len(x) > 1, f"x has {len(x)} examples: a variance needs at least 2")
        return (1 - momentum) * mean + momentum * x.mean(0), (1 - momentum) * var + momentum * x.var(0, ddof=1)

    def rounding(self, x: Array, weight: Array, bias: Array, *running: Array) -> Array:
        y, saved = self.forward(x, weight, bias, *running)
        shift = len(x) * saved.condition
        relative = shift + (len(x) / 2 + 6 + 2 * shift) * np.abs(saved.x_hat)
        return np.abs(weight) * relative + 2 * (np.abs(y) + np.abs(bias))

    def backward_rounding(self, y_bar: Array, saved: SavedBatch) -> tuple[Array | None, ...]:
        x_hat, sigma, weight, of_batch, condition = saved
        n, size = len(x_hat), np.abs(y_bar)
        spread = size + (size.mean(0) + (np.abs(x_hat) + 1) * (size * (np.abs(x_hat) + 1)).mean(0) if of_batch else 0.0)
        x_bar = (3 * n + 20) * (1 + condition) * np.abs(weight) / sigma * spread
        x_hat_error = n + n / 2 + 8 + n * condition
        bars = x_bar, (size * x_hat_error * (np.abs(x_hat) + 1)).sum(0), (n + 2) * size.sum(0)
        return bars if of_batch else (*bars, None, None)


NORMS: dict[str, type[RMSNorm] | type[LayerNorm]] = {"rms": RMSNorm, "layer": LayerNorm}
"""By the configuration's word."""


@given
def rms_norm(x: Float[Array, "... d"], weight: Float[Array, " d"], eps: float = 1e-6) -> Float[Array, "... d"]:
    """RMSNorm as a function."""
    return RMSNorm(eps)(x, weight)


@given
def layer_norm(
    x: Float[Array, "... d"], weight: Float[Array, " d"], bias: Float[Array, " d"], eps: float = 1e-5
) -> Float[Array, "... d"]:
    """LayerNorm as a function."""
    return LayerNorm(eps)(x, weight, bias)


@given
def batch_norm(
    x: Float[Array, "example d"],
    weight: Float[Array, " d"],
    bias: Float[Array, " d"],
    mean: Real[Array, " d"] | None = None,
    var: Real[Array, " d"] | None = None,
    eps: float = 1e-5,
) -> Float[Array, "example d"]:
    """BatchNorm as a function; with running statistics it evaluates, without them it trains."""
    if (mean is None) != (var is None):
        raise ShapeError("mean and var belong together: give both to evaluate, neither to train")
    running = () if mean is None or var is None else (mean, var)
    return BatchNorm(eps)(x, weight, bias, *running)


def _root_mean_square(x: Array, eps: float) -> Array:
    """√(mean x² + ε) of each vector; powers of two are taken out, so that squares neither overflow nor vanish.

    Raises  DomainError when it is 0: a vector of zeros with ε = 0 has no size to divide by
    """
    if not x.shape[-1]:
        raise ShapeError(f"x has shape {x.shape}: a vector without entries has no size")
    largest = np.abs(x).max(-1, keepdims=True, initial=0.0)
    unit = np.where((largest > 1e150) | ((largest < 1e-150) & (largest > 0)), np.exp2(np.frexp(largest)[1]), 1.0)
    scaled = x / unit
    r: Array = unit * np.sqrt((scaled * scaled).mean(-1, keepdims=True) + eps / unit / unit)
    if (r == 0).any():
        raise DomainError("a vector has no size and eps is 0: nothing to divide by; take eps above 0")
    return r


def _over_vectors(y: Array) -> Array:
    """Sum over every axis but the last."""
    total: Array = y.sum(axis=tuple(range(y.ndim - 1)))
    return total
