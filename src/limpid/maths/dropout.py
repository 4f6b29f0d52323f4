"""Dropout, with the mask as an input: a step can only be redone when it is known what was dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

from limpid.maths.operation import Array, Branch, Operation, Shape, in_latex, require_shape


@dataclass(frozen=True)
class Dropout(Operation):
    """Set a random share of the entries to zero and enlarge the rest, so that the mean stays.

    Takes   x     (...)
            kept  (...)  1 where an entry stays, 0 where it is dropped    drawn for the batch
    Gives   y     (...)  in the unit of x
    Saves   the mask
    Limits  probability 0 leaves x as it is
    Raises  ShapeError when the mask has another shape
    """

    probability: float

    equation = r"y = x \odot k / (1 - p), \quad k \sim \text{Bernoulli}(1 - p)"
    adjoint = (r"\bar x = \bar y \odot k / (1 - p)", r"")
    source = "Srivastava et al. 2014, section 4, JMLR 15"
    branch = Branch.PROBABILITY
    roundings = 2
    backward_roundings = 2

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        return line.replace("1 - p", f"1 - {in_latex(self.probability)}")

    def forward(self, x: Float[Array, "..."], kept: Shaped[Array, "..."]) -> tuple[Array, Array]:
        require_shape("kept", kept, x.shape, "the mask must have been drawn for this quantity")
        return x * kept / (1 - self.probability), kept

    def backward(self, y_bar: Float[Array, "..."], saved: Array) -> tuple[Array, None]:
        return y_bar * saved / (1 - self.probability), None

    def formed_backward(self, y_bar: Array) -> Array:
        enlarged: Array = np.abs(y_bar) / (1 - self.probability)  # before what is dropped is set to 0
        return enlarged

    def rounding(self, x: Array, kept: Array) -> Array:
        return 3 * np.abs(self.forward(x, kept)[0])

    def backward_rounding(self, y_bar: Array, saved: Array) -> tuple[Array, None]:
        return 3 * np.abs(self.backward(y_bar, saved)[0]), None
