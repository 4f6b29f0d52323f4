"""The MLP's hidden layer: one linear map gated by another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.maths.activation import GELU, Activation, SiLU
from limpid.maths.operation import Array, Branch, Operation, Shape, require_shape


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

    activation: Activation = SiLU()  # noqa: RUF009  frozen

    equation = r"h = f(g) \odot u"
    adjoint = (r"\bar g = \bar h \odot u \odot f'(g)", r"\bar u = \bar h \odot f(g)")
    source = "Shazeer 2020, eq. 6, arXiv:2002.05202; Dauphin et al. 2017, arXiv:1612.08083"
    branch = Branch.CALCULUS
    roundings = 2
    backward_roundings = 3

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        function = self.activation.equation.replace("y = ", "f(x) = ", 1)
        return rf"{line}, \quad {function}" if line == self.equation else line

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


swiglu, geglu = Gated(), Gated(GELU())
