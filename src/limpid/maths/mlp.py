"""The MLP's nonlinearities, each with its own slope; plain and gated."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.maths.operation import Array, Branch, Operation, require_shape
from limpid.maths.special import erfc


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
        return x * _logistic(x)

    def slope(self, x: Array) -> Array:
        sigma = _logistic(x)
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
        return x * self._share(x)

    def slope(self, x: Array) -> Array:
        return self._share(x) + x * self._density(x)

    def value_error(self, x: Array) -> Array:
        return 6 * np.abs(x)  # engines form 1 + erf, which cancels for negative x

    def slope_error(self, x: Array) -> Array:
        return 6 + (x * x + 8) * np.abs(x) * self._density(x)

    @staticmethod
    def _share(x: Array) -> Array:
        return 0.5 * erfc(x / -math.sqrt(2))  # 1 + erf without its cancellation

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
        return 0.5 * x * (1 + np.tanh(self._inner(x)))

    def slope(self, x: Array) -> Array:
        tanh = np.tanh(self._inner(x))
        return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * self._inner_slope(x)

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


def _logistic(x: Array) -> Array:
    """1 / (1 + e⁻ˣ) without overflow on either side."""
    small = np.exp(-np.abs(x))
    logistic: Array = np.where(x >= 0, 1.0, small) / (1 + small)
    return logistic


ACTIVATIONS: dict[str, Activation] = {
    "silu": SiLU(),
    "gelu": GELU(),
    "gelu_tanh": GELUTanh(),
    "relu": ReLU(),
    "relu2": SquaredReLU(),
}
"""By the configuration's word."""


class SavedGated(NamedTuple):
    gate: Array
    up: Array


@dataclass(frozen=True)
class Gated(Operation):
    """Multiply one linear map of x by a function of another: the second opens and closes the first.

    Takes   gate    (..., d_ff)
            up      (..., d_ff)
    Gives   hidden  (..., d_ff)
    Saves   both
    Limits  a closed gate, f(gate) = 0, stops values and gradients of `up`
    Raises  ShapeError when the two differ in shape
    """

    activation: Activation = SiLU()

    equation = r"h = f(g) \odot u"
    adjoint = (r"\bar g = \bar h \odot u \odot f'(g)", r"\bar u = \bar h \odot f(g)")
    source = "Shazeer 2020, eq. 6, arXiv:2002.05202; Dauphin et al. 2017, arXiv:1612.08083"
    branch = Branch.CALCULUS
    roundings = 2
    backward_roundings = 3

    def forward(self, gate: Float[Array, "... d_ff"], up: Float[Array, "... d_ff"]) -> tuple[Array, SavedGated]:
        require_shape("up", up, gate.shape, "gate and up are two maps of the same vectors")
        return self.activation.value(gate) * up, SavedGated(gate, up)

    def backward(self, hidden_bar: Float[Array, "... d_ff"], saved: SavedGated) -> tuple[Array, Array]:
        gate, up = saved
        return hidden_bar * up * self.activation.slope(gate), hidden_bar * self.activation.value(gate)

    def rounding(self, gate: Array, up: Array) -> Array:
        return (self.activation.value_error(gate) + np.abs(self.activation.value(gate))) * np.abs(up)

    def backward_rounding(self, hidden_bar: Array, saved: SavedGated) -> tuple[Array, Array]:
        gate, up = saved
        f, slope = np.abs(self.activation.value(gate)), np.abs(self.activation.slope(gate))
        return (
            (self.activation.slope_error(gate) + 2 * slope) * np.abs(up * hidden_bar),
            (self.activation.value_error(gate) + f) * np.abs(hidden_bar),
        )
