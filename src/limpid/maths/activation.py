"""Nonlinearities: functions of each entry by itself, each with its own slope."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from limpid.maths.operation import Array, Branch, Operation

LARGEST = float(np.finfo(np.float64).max)
"""What -∞ is taken for where its share is 0: the product is 0, not ∞ · 0."""


class Activation(Operation):
    """A function of each entry by itself, and its slope."""

    branch = Branch.CALCULUS

    @abstractmethod
    def value(self, x: Array) -> Array:
        """f(x)."""

    @abstractmethod
    def slope(self, x: Array) -> Array:
        """f'(x)."""

    @abstractmethod
    def value_error(self, x: Array) -> Array:
        """Error of f(x) in u, as an engine computes it."""

    @abstractmethod
    def slope_error(self, x: Array) -> Array:
        """Error of f'(x) in u."""

    def forward(self, x: Float[Array, "..."]) -> tuple[Array, Array]:
        return self.value(x), x

    def backward(self, y_bar: Float[Array, "..."], saved: Array) -> tuple[Array]:
        return (self.slope(saved) * y_bar,)

    def rounding(self, x: Array) -> Array:
        return self.value_error(x)

    def backward_rounding(self, y_bar: Array, saved: Array) -> tuple[Array]:
        return ((self.slope_error(saved) + np.abs(self.slope(saved))) * np.abs(y_bar),)


@dataclass(frozen=True)
class ReLU(Activation):
    """Keep what is positive.

    Takes   x  (...)
    Gives   y  (...)
    Saves   x
    Limits  the slope at 0 is taken as 0
    """

    equation = r"y = \max(0, x)"
    adjoint = (r"\bar x = \bar y \,[x > 0]",)
    source = "Nair & Hinton 2010, section 2, ICML"

    def value(self, x: Array) -> Array:
        return np.maximum(x, 0.0)

    def slope(self, x: Array) -> Array:
        return (x > 0).astype(np.float64)

    def value_error(self, x: Array) -> Array:
        return np.zeros_like(x)

    def slope_error(self, x: Array) -> Array:
        return np.zeros_like(x)


@dataclass(frozen=True)
class SquaredReLU(Activation):
    """Keep what is positive, squared.

    Takes   x  (...)
    Gives   y  (...)  in the unit of x²
    Saves   x
    Limits  slope 0 at 0, without a jump
    """

    equation = r"y = \max(0, x)^2"
    adjoint = (r"\bar x = 2 \max(0, x)\, \bar y",)
    source = "So et al. 2021, section 4, arXiv:2109.08668"
    roundings = 2
    backward_roundings = 3

    def value(self, x: Array) -> Array:
        return np.square(np.maximum(x, 0.0))

    def slope(self, x: Array) -> Array:
        return 2 * np.maximum(x, 0.0)

    def value_error(self, x: Array) -> Array:
        return 2 * self.value(x)

    def slope_error(self, x: Array) -> Array:
        return 2 * self.slope(x)


@dataclass(frozen=True)
class SiLU(Activation):
    """Let x pass in proportion to its logistic function.

    Takes   x  (...)
    Gives   y  (...)
    Saves   x
    Limits  x → ∞ gives x, x → -∞ gives 0; the least value is -0.278 at x = -1.278
    """

    equation = r"y = x\, \sigma(x), \quad \sigma(x) = 1 / (1 + e^{-x})"
    adjoint = (r"\bar x = \bar y\, \sigma(x) \bigl(1 + x (1 - \sigma(x))\bigr)",)
    source = "Elfwing, Uchibe & Doya 2018, eq. 1, arXiv:1702.03118"

    def value(self, x: Array) -> Array:
        return np.maximum(x, -LARGEST) * _logistic(x)

    def slope(self, x: Array) -> Array:
        x, sigma = np.clip(x, -LARGEST, LARGEST), _logistic(x)
        return sigma * (1 + x * (1 - sigma))

    def value_error(self, x: Array) -> Array:
        return (np.abs(x) + 6) * np.abs(self.value(x))

    def slope_error(self, x: Array) -> Array:
        return _logistic(x) * (np.abs(x) + 8) * (1 + np.abs(x))


@dataclass(frozen=True)
class GELU(Activation):
    """Let x pass in proportion to the probability that a standard normal variable is smaller.

    Takes   x  (...)
    Gives   y  (...)
    Saves   x
    Limits  x → ∞ gives x, x → -∞ gives 0
    """

    equation = r"y = x\, \Phi(x), \quad \Phi(x) = \tfrac12 \bigl(1 + \operatorname{erf}(x / \sqrt2)\bigr)"
    adjoint = (r"\bar x = \bar y\, \bigl(\Phi(x) + x\, \tfrac{1}{\sqrt{2\pi}} e^{-x^2/2}\bigr)",)
    source = "Hendrycks & Gimpel 2016, eq. 1, arXiv:1606.08415"

    def value(self, x: Array) -> Array:
        return np.maximum(x, -LARGEST) * self._share(x)

    def slope(self, x: Array) -> Array:
        near = np.clip(x, -40.0, 40.0)  # beyond, the second term is 0 to the last digit, but its factors overflow
        return self._share(x) + near * self._density(near)

    def value_error(self, x: Array) -> Array:
        return 6 * np.abs(x)  # engines form 1 + erf, which cancels for negative x

    def slope_error(self, x: Array) -> Array:
        return 6 + (x * x + 8) * np.abs(x) * self._density(x)

    @staticmethod
    def _share(x: Array) -> Array:
        from scipy.special import erfc  # SciPy is loaded by those who ask for GELU alone

        share: Array = 0.5 * erfc(x / -math.sqrt(2))  # 1 + erf without its cancellation
        return share

    @staticmethod
    def _density(x: Array) -> Array:
        density: Array = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return density


@dataclass(frozen=True)
class GELUTanh(Activation):
    """GELU with its normal distribution approximated by a hyperbolic tangent, as GPT-2 has it.

    Takes   x  (...)
    Gives   y  (...)  within 0.0005 of GELU
    Saves   x
    Limits  as GELU
    """

    equation = r"y = \tfrac12 x \bigl(1 + \tanh a\bigr), \quad a = \sqrt{2/\pi}\, (x + 0.044715\, x^3)"
    adjoint = (
        r"\bar x = \bar y\, \bigl(\tfrac12 (1 + \tanh a) + \tfrac12 x (1 - \tanh^2 a) \sqrt{2/\pi}\, "
        r"(1 + 0.134145\, x^2)\bigr)",
    )
    source = "Hendrycks & Gimpel 2016, section 2, arXiv:1606.08415"

    def value(self, x: Array) -> Array:
        return 0.5 * np.maximum(x, -LARGEST) * (1 + np.tanh(self._inner(x)))

    def slope(self, x: Array) -> Array:
        near = np.clip(x, -40.0, 40.0)  # beyond, tanh is ±1 and the second term 0 to the last digit
        tanh = np.tanh(self._inner(near))
        return 0.5 * (1 + tanh) + 0.5 * near * (1 - tanh * tanh) * self._inner_slope(near)

    def value_error(self, x: Array) -> Array:
        return 6 * np.abs(x)

    def slope_error(self, x: Array) -> Array:
        return 6 + 6 * np.abs(x) * self._inner_slope(x)

    @staticmethod
    def _inner(x: Array) -> Array:
        return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)

    @staticmethod
    def _inner_slope(x: Array) -> Array:
        return math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)


@dataclass(frozen=True)
class Sigmoid(Activation):
    """Turn log-odds into a probability: the logistic function.

    Takes   x  (...)  log-odds, nats
    Gives   y  (...)  probability, between 0 and 1
    Saves   x
    Limits  saturates: beyond ±37 the result is 0 or 1 to the last digit, and the slope is nearly gone
    """

    equation = r"y = \sigma(x) = 1 / (1 + e^{-x})"
    adjoint = (r"\bar x = \bar y\, \sigma(x) (1 - \sigma(x))",)
    source = "Verhulst 1845; as a unit, Rumelhart, Hinton & Williams 1986, eq. 2, doi:10.1038/323533a0"
    backward_roundings = 3

    def value(self, x: Array) -> Array:
        return _logistic(x)

    def slope(self, x: Array) -> Array:
        return _logistic(x) * _logistic(-x)

    def value_error(self, x: Array) -> Array:
        return (np.abs(x) + 4) * self.value(x)

    def slope_error(self, x: Array) -> Array:
        return (np.abs(x) + 8) * self.value(x)  # engines form 1 - y, which cancels for large x

    def backward_storage(self, bars: Sequence[Array | None], y_bar: Array, saved: Array) -> tuple[Array]:
        return (3 * self.value(saved) * np.abs(y_bar),)  # y (1 - y) of a stored y


@dataclass(frozen=True)
class Tanh(Activation):
    """Squash between -1 and 1, keeping the sign.

    Takes   x  (...)
    Gives   y  (...)
    Saves   x
    Limits  saturates: beyond ±19 the result is ±1 to the last digit, and the slope is nearly gone
    """

    equation = r"y = \tanh x = 2 \sigma(2x) - 1"
    adjoint = (r"\bar x = \bar y\, (1 - \tanh^2 x)",)
    source = "LeCun et al. 1998, section 4.4, doi:10.1007/3-540-49430-8_2"
    backward_roundings = 3

    def value(self, x: Array) -> Array:
        return np.tanh(x)

    def slope(self, x: Array) -> Array:
        small = np.exp(-2 * np.abs(x))
        slope: Array = 4 * small / np.square(1 + small)  # 1 - tanh², without its cancellation
        return slope

    def value_error(self, x: Array) -> Array:
        return 4 * np.abs(self.value(x))

    def slope_error(self, x: Array) -> Array:
        return 10 * np.ones_like(x)  # engines form 1 - y², which cancels

    def backward_storage(self, bars: Sequence[Array | None], y_bar: Array, saved: Array) -> tuple[Array]:
        return (4 * np.abs(y_bar),)  # 1 - y² of a stored y


def _logistic(x: Array) -> Array:
    """1 / (1 + e⁻ˣ) without overflow on either side."""
    logistic: Array = np.exp(np.minimum(x, 0.0)) / (1 + np.exp(-np.abs(x)))
    return logistic


relu, squared_relu, silu, gelu, gelu_tanh = ReLU(), SquaredReLU(), SiLU(), GELU(), GELUTanh()
sigmoid, tanh, swish = Sigmoid(), Tanh(), silu

ACTIVATIONS: dict[str, Activation] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "relu2": squared_relu,
}
"""By the configuration's word."""
