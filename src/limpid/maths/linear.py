"""Linear maps, and the sum that makes the residual stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.errors import ShapeError
from limpid.maths.operation import Array, Branch, Operation, Shape, in_latex, require_shape
from limpid.maths.rounding import magnitudes


class SavedLinear(NamedTuple):
    rows: Array  # (vector, d_in)  x with its leading axes in one
    weight: Array  # (d_out, d_in)
    x_shape: tuple[int, ...]
    biased: bool


@dataclass(frozen=True)
class Linear(Operation):
    """Map every vector by one matrix; a vector may come, or leave, as heads side by side.

    Takes   x       (..., d_in), or (..., head, d_head) with heads_in
            weight  (d_out, d_in)   learned
            bias    (d_out,)        learned; may be left out
    Gives   y       (..., d_out), or (..., head, d_out / head) with heads_out
    Saves   x and weight
    Limits  x = 0 gives the bias
    Raises  ShapeError when the weight's columns are not as many as x has features
    """

    heads_in: int | None = None
    heads_out: int | None = None

    equation = r"y_i = \sum_j W_{ij} x_j + b_i"
    adjoint = (
        r"\bar x_j = \sum_i \bar y_i W_{ij}",
        r"\bar W_{ij} = \sum_{\text{vectors}} \bar y_i x_j",
        r"\bar b_i = \sum_{\text{vectors}} \bar y_i",
    )
    source = "Rumelhart, Hinton & Williams 1986, eq. 1, doi:10.1038/323533a0"
    branch = Branch.LINEAR_ALGEBRA

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        return line if len(shapes) > 2 else line.removesuffix(" + b_i")

    def forward(
        self,
        x: Float[Array, "... feature"],
        weight: Float[Array, "d_out d_in"],
        bias: Float[Array, " d_out"] | None = None,
    ) -> tuple[Array, SavedLinear]:
        leading = x.shape[: -1 if self.heads_in is None else -2]
        d_out, d_in = weight.shape
        if math.prod(x.shape[len(leading) :]) != d_in:
            raise ShapeError(
                f"weight has shape {weight.shape}, x {x.shape}: its columns must be as many as x's features"
            )
        rows = x.reshape(-1, d_in)
        y = rows @ weight.T
        if bias is not None:
            require_shape("bias", bias, (d_out,), "it must have one entry per row of the weight")
            y += bias
        return y.reshape(self._shape(x, weight)), SavedLinear(rows, weight, x.shape, bias is not None)

    def _shape(self, x: Array, weight: Array) -> tuple[int, ...]:
        """Of the result."""
        leading, d_out = x.shape[: -1 if self.heads_in is None else -2], weight.shape[0]
        return (*leading, d_out) if self.heads_out is None else (*leading, self.heads_out, d_out // self.heads_out)

    def backward(self, y_bar: Float[Array, "... feature"], saved: SavedLinear) -> tuple[Array, ...]:
        rows, weight, x_shape, biased = saved
        y_bar = y_bar.reshape(len(rows), -1)
        x_bar, weight_bar = (y_bar @ weight).reshape(x_shape), y_bar.T @ rows
        return (x_bar, weight_bar, y_bar.sum(0)) if biased else (x_bar, weight_bar)

    def rounding(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        rows = x.reshape(-1, weight.shape[1])
        magnitude = magnitudes(rows, weight.T)
        if bias is not None:
            magnitude += np.abs(bias)
        magnitude *= weight.shape[1] + 1
        return magnitude.reshape(self._shape(x, weight))

    def backward_rounding(self, y_bar: Array, saved: SavedLinear) -> tuple[Array, ...]:
        rows, weight, x_shape, biased = saved
        y_bar = y_bar.reshape(len(rows), -1)
        x_bar = (weight.shape[0] + 1) * magnitudes(y_bar, weight).reshape(x_shape)
        weight_bar = (len(rows) + 1) * magnitudes(y_bar.T, rows)
        return (x_bar, weight_bar, (len(rows) + 1) * np.abs(y_bar).sum(0)) if biased else (x_bar, weight_bar)

    def storage(self, y: Array, x: Array, weight: Array, bias: Array | None = None) -> Array:
        if bias is None:
            return np.abs(y)
        return 2 * np.abs(y) + np.abs(bias).reshape(y.shape[y.ndim - (1 if self.heads_out is None else 2) :])

    def flops(self, x: Array, weight: Array, *bias: Array) -> int:
        return 2 * x.size * weight.shape[0]


class SavedShapes(NamedTuple):
    x: tuple[int, ...]
    y: tuple[int, ...]


@dataclass(frozen=True)
class Add(Operation):
    """Add two arrays; the smaller one is repeated along the axes that it lacks.

    Takes   x  (..., d)  the residual stream
            y  (..., d)  what a sublayer writes to it, or the vectors of the positions
    Gives   z  (..., d)
    Saves   the shapes only
    Limits  y = 0 leaves x as it is: a block can start as the identity
    Raises  ShapeError when the shapes cannot be brought together
    """

    equation = r"z = x + y"
    adjoint = (r"\bar x = \bar z", r"\bar y = \sum_{\text{repeated}} \bar z")
    source = "He et al. 2016, eq. 1, arXiv:1512.03385"
    branch = Branch.LINEAR_ALGEBRA

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        return line if len(set(shapes)) > 1 else line.replace(r"\sum_{\text{repeated}} ", "")

    def forward(self, x: Float[Array, "*x"], y: Float[Array, "*y"]) -> tuple[Array, SavedShapes]:
        try:
            return x + y, SavedShapes(x.shape, y.shape)
        except ValueError as error:
            raise ShapeError(f"x has shape {x.shape}, y {y.shape}: they cannot be added") from error

    def backward(self, z_bar: Float[Array, "*z"], saved: SavedShapes) -> tuple[Array, Array]:
        return _summed_to(z_bar, saved.x), _summed_to(z_bar, saved.y)

    def rounding(self, x: Array, y: Array) -> Array:
        magnitude: Array = np.abs(x + y)
        return magnitude

    def backward_rounding(self, z_bar: Array, saved: SavedShapes) -> tuple[Array, Array]:
        shapes = (saved.x, saved.y)
        sums = [_summed_to(np.abs(z_bar), shape) for shape in shapes]
        x_bar, y_bar = ((z_bar.size // max(1, bar.size) - 1) * bar for bar in sums)
        return x_bar, y_bar


@dataclass(frozen=True)
class AddScaled(Operation):
    """Add a multiple of one array to another: a low-rank change beside a linear map.

    Takes   x  (..., d)  what the map itself gives
            y  (..., d)  what its low-rank factors give, B A x
    Gives   z  (..., d)
    Saves   nothing
    Limits  scale = 0, or B = 0 as at the start, leaves x as it is
    Raises  ShapeError when the shapes differ
    """

    scale: float

    equation = r"z = x + s\, y"
    adjoint = (r"\bar x = \bar z", r"\bar y = s\, \bar z")
    source = "Hu et al. 2021, eq. 3, arXiv:2106.09685"
    branch = Branch.LINEAR_ALGEBRA

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        if self.scale == -1:
            return line.replace("+ s\\,", "-").replace("s\\,", "-")
        return line.replace("s\\,", rf"{in_latex(self.scale)}\,")

    def forward(self, x: Float[Array, "*shape"], y: Float[Array, "*y"]) -> tuple[Array, None]:
        require_shape("y", y, x.shape, "it must have the shape of x")
        return x + self.scale * y, None

    def backward(self, z_bar: Float[Array, "*shape"], saved: None) -> tuple[Array, Array]:
        return z_bar, self.scale * z_bar

    def rounding(self, x: Array, y: Array) -> Array:
        change = self.scale * y
        return np.abs(change) + np.abs(x + change)

    def backward_rounding(self, z_bar: Array, saved: None) -> tuple[Array, Array]:
        return np.zeros_like(z_bar), np.abs(self.scale * z_bar)

    def storage(self, y: Array, *inputs: Array) -> Array:
        return np.abs(y) + np.abs(self.scale * inputs[1])  # PyTorch rounds the multiple to the tensors' format, too


def _summed_to(z_bar: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of an array that was repeated: the sum over its copies."""
    missing = z_bar.ndim - len(shape)
    repeated = [missing + axis for axis, size in enumerate(shape) if size == 1 and z_bar.shape[missing + axis] != 1]
    summed: Array = z_bar.sum(axis=(*range(missing), *repeated)) if missing or repeated else z_bar
    return summed.reshape(shape)
