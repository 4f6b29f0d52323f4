"""A changed weight as length and direction: the lengths of its rows, and outputs brought to learned ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.errors import ShapeError
from limpid.maths.operation import Array, Branch, Operation, Shape, in_latex, require_shape

SOURCE = "Liu et al. 2024, eq. 5, arXiv:2402.09353"


class SavedLength(NamedTuple):
    changed: Array  # (d_out, d_in)  V = W + s B A
    length: Array  # (d_out,)
    down: Array  # A
    up: Array  # B


@dataclass(frozen=True)
class RowLength(Operation):
    """The Euclidean length of every row of a weight with its low-rank change.

    Takes   weight  (d_out, d_in)  W, frozen
            down    (rank, d_in)   A, learned
            up      (d_out, rank)  B, learned
    Gives   length  (d_out,)       n
    Saves   the changed weight V and n
    Limits  B = 0 gives the lengths of W's rows; a row of zeros has length 0, and no gradient there
    Raises  ShapeError when A, B and W do not fit together
    """

    scale: float

    equation = r"n_i = \lVert V_i \rVert, \quad V = W + s B A"
    adjoint = (
        r"\bar W_{ij} = \bar n_i V_{ij} / n_i",
        r"\bar A_{kj} = s \sum_i B_{ik} \bar n_i V_{ij} / n_i",
        r"\bar B_{ik} = s \sum_j \bar n_i V_{ij} A_{kj} / n_i",
    )
    source = SOURCE
    branch = Branch.LINEAR_ALGEBRA

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        return line.replace(" s B", rf" {in_latex(self.scale)} B").replace("s \\sum", rf"{in_latex(self.scale)} \sum")

    def forward(
        self,
        weight: Float[Array, "d_out d_in"],
        down: Float[Array, "rank d_in"],
        up: Float[Array, "d_out rank"],
    ) -> tuple[Array, SavedLength]:
        if (up.shape[0], down.shape[1]) != weight.shape or up.shape[1] != len(down):
            raise ShapeError(f"W has shape {weight.shape}, A {down.shape} and B {up.shape}: B A must have that of W")
        changed = weight + self.scale * (up @ down)
        length = np.sqrt(np.square(changed).sum(-1))
        return length, SavedLength(changed, length, down, up)

    def backward(self, y_bar: Float[Array, " d_out"], saved: SavedLength) -> tuple[Array, Array, Array]:
        changed, length, down, up = saved
        direction = np.divide(changed, length[:, None], out=np.zeros_like(changed), where=length[:, None] > 0)
        changed_bar = y_bar[:, None] * direction
        return changed_bar, self.scale * (up.T @ changed_bar), self.scale * (changed_bar @ down.T)

    def rounding(self, weight: Array, down: Array, up: Array) -> Array:
        return self._of_length(self.forward(weight, down, up)[1])

    def backward_rounding(self, y_bar: Array, saved: SavedLength) -> tuple[Array, Array, Array]:
        changed, length, down, up = saved
        direction = np.divide(np.abs(changed), length[:, None], out=np.zeros_like(changed), where=length[:, None] > 0)
        each = self._of_change(saved) + direction * self._of_length(saved)[:, None]
        each = np.divide(each, length[:, None], out=np.full_like(each, np.inf), where=length[:, None] > 0)
        bar = np.abs(y_bar)[:, None]
        error, magnitude = bar * (each + 2 * direction), bar * direction
        s, (d_out, d_in) = abs(self.scale), changed.shape
        down_bar = s * (np.abs(up).T @ (error + (d_out + 1) * magnitude))
        return error, down_bar, s * ((error + (d_in + 1) * magnitude) @ np.abs(down).T)

    def _of_change(self, saved: SavedLength) -> Array:
        """Of each entry of V: the sum over the rank, its multiple, and the sum with W."""
        magnitude: Array = abs(self.scale) * (np.abs(saved.up) @ np.abs(saved.down))
        return (len(saved.down) + 1) * magnitude + np.abs(saved.changed)

    def _of_length(self, saved: SavedLength) -> Array:
        """Of each length: what the entries bring, and a sum of squares whose roundings the root halves."""
        changed, length = saved.changed, saved.length
        brought = (np.abs(changed) * self._of_change(saved)).sum(-1)
        brought = np.divide(brought, length, out=self._of_change(saved).sum(-1), where=length > 0)
        return brought + (changed.shape[-1] / 2 + 2) * length

    def flops(self, weight: Array, down: Array, up: Array) -> int:
        return 2 * weight.size * len(down)


class SavedMagnitude(NamedTuple):
    z: Array  # (..., d_out), or heads side by side
    magnitude: Array  # in the shape of z's last axes
    length: Array
    biased: bool


@dataclass(frozen=True)
class Magnitude(Operation):
    """Bring every output of a map, whose weight's rows have one length, to a learned one, and add the bias.

    Takes   z          (..., d_out), or (..., head, d_head)  what the changed weight gives
            magnitude  (d_out,)  m, learned
            length     (d_out,)  n, of the rows of the changed weight
            bias       (d_out,)  may be left out
    Gives   y          in the shape of z
    Saves   z, m and n
    Limits  m = n gives z + b: the map without the change of lengths
    Raises  ShapeError when there are not as many magnitudes or lengths as outputs
    """

    equation = r"y_i = \frac{m_i}{n_i} z_i + b_i"
    adjoint = (
        r"\bar z_i = \frac{m_i}{n_i} \bar y_i",
        r"\bar m_i = \frac{1}{n_i} \sum_{\text{vectors}} \bar y_i z_i",
        r"\bar n_i = -\frac{m_i}{n_i^2} \sum_{\text{vectors}} \bar y_i z_i",
        r"\bar b_i = \sum_{\text{vectors}} \bar y_i",
    )
    source = SOURCE
    branch = Branch.LINEAR_ALGEBRA

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        return line if len(shapes) > 3 else line.removesuffix(" + b_i")

    def forward(
        self,
        z: Float[Array, "... feature"],
        magnitude: Float[Array, " d_out"],
        length: Float[Array, " d_out"],
        bias: Float[Array, " d_out"] | None = None,
    ) -> tuple[Array, SavedMagnitude]:
        outputs = z.shape[-1:] if z.shape[-1] == magnitude.size else z.shape[-2:]
        if math.prod(outputs) != magnitude.size:
            raise ShapeError(f"magnitude has shape {magnitude.shape}, z {z.shape}: there must be one for each output")
        require_shape("length", length, magnitude.shape, "there must be one for each output")
        m, n = magnitude.reshape(outputs), length.reshape(outputs)
        y = m / n * z
        if bias is not None:
            require_shape("bias", bias, magnitude.shape, "there must be one for each output")
            y = y + bias.reshape(outputs)
        return y, SavedMagnitude(z, m, n, bias is not None)

    def backward(self, y_bar: Float[Array, "... feature"], saved: SavedMagnitude) -> tuple[Array, ...]:
        z, m, n, biased = saved
        along = _over_vectors(y_bar * z, m.ndim)
        bars = (m / n * y_bar, along / n.ravel(), -along * (m / np.square(n)).ravel())
        return (*bars, _over_vectors(y_bar, m.ndim)) if biased else bars

    def rounding(self, z: Array, magnitude: Array, length: Array, bias: Array | None = None) -> Array:
        product = np.abs(self.forward(z, magnitude, length)[0])
        return 2 * product if bias is None else 2 * product + np.abs(self.forward(z, magnitude, length, bias)[0])

    def backward_rounding(self, y_bar: Array, saved: SavedMagnitude) -> tuple[Array, ...]:
        z, m, n, biased = saved
        vectors = z.size // m.size
        along = _over_vectors(np.abs(y_bar * z), m.ndim)
        z_bar, m_bar = 2 * np.abs(m / n * y_bar), (vectors + 3) * along / n.ravel()
        bars = (z_bar, m_bar, (vectors + 6) * along * np.abs(m / np.square(n)).ravel())
        return (*bars, (vectors + 1) * _over_vectors(np.abs(y_bar), m.ndim)) if biased else bars


def _over_vectors(x: Array, features: int) -> Array:
    """The sum over all axes but the last `features`, which become one."""
    summed: Array = x.sum(axis=tuple(range(x.ndim - features)))
    return summed.ravel()
