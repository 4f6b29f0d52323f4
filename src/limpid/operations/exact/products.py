"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.maths.rounding import magnitudes
from limpid.operations.exact.elementwise import FUNCTION
from limpid.operations.exact.exact import Exact, arithmetic, growth


def product(a: Array, b: Array) -> Exact:
    """A B."""
    if a.ndim == 1 or b.ndim == 1:
        return Exact(np.asarray(a @ b), growth(a.shape[-1]) * np.asarray(np.abs(a) @ np.abs(b)))
    if np.iscomplexobj(a) or np.iscomplexobj(b):  # a product of complex numbers is two of real ones, added up
        return Exact(a @ b, growth(2 * a.shape[-1]) * 2 * magnitudes(np.abs(a), np.abs(b)))
    return Exact(a @ b, growth(a.shape[-1]) * magnitudes(a, b))


@arithmetic("mm", "bmm")
def matrix_product(self: Array, mat2: Array, out_dtype: Any = None) -> Exact:
    """A B."""
    return product(self, mat2)


@arithmetic("mv")
def mv(self: Array, vec: Array) -> Exact:
    """A x."""
    return product(self, vec)


@arithmetic("dot")
def dot(self: Array, tensor: Array) -> Exact:
    """Σ a b."""
    return product(self, tensor)


@arithmetic("vdot")
def vdot(self: Array, other: Array) -> Exact:
    """Σ ā b."""
    return product(self.conj(), other)


@arithmetic("addr")
def addr(self: Array, vec1: Array, vec2: Array, beta: float = 1, alpha: float = 1) -> Exact:
    """β C + α x yᵀ."""
    return _added(self, product(vec1[:, None], vec2[None, :]), beta, alpha)


@arithmetic("addbmm")
def addbmm(self: Array, batch1: Array, batch2: Array, beta: float = 1, alpha: float = 1) -> Exact:
    """β C + α Σ A B over a batch."""
    wide = product(np.concatenate(list(batch1), -1), np.concatenate(list(batch2), -2))
    return _added(self, wide, beta, alpha)


def _added(self: Array, made: Exact, beta: float, alpha: float) -> Exact:
    shift = beta * self if beta else 0.0
    rounding = abs(alpha) * (np.asarray(made.rounding) + FUNCTION * np.abs(made.value)) + FUNCTION * np.abs(shift)
    return Exact(shift + alpha * made.value, rounding)


@arithmetic("addmm")
def addmm(self: Array, mat1: Array, mat2: Array, beta: float = 1, alpha: float = 1, out_dtype: Any = None) -> Exact:
    """β C + α A B."""
    return _added(self, product(mat1, mat2), beta, alpha)


@arithmetic("baddbmm")
def baddbmm(
    self: Array, batch1: Array, batch2: Array, beta: float = 1, alpha: float = 1, out_dtype: Any = None
) -> Exact:
    """The same of every pair of a batch."""
    return _added(self, product(batch1, batch2), beta, alpha)


@arithmetic("addmv")
def addmv(self: Array, mat: Array, vec: Array, beta: float = 1, alpha: float = 1) -> Exact:
    """β y + α A x."""
    return _added(self, product(mat, vec), beta, alpha)


@arithmetic("_grouped_mm")
def grouped_product(
    self: Array, mat2: Array, offs: Array | None = None, bias: Array | None = None, out_dtype: Any = None
) -> Exact | None:
    """Rows in groups, each by a matrix of its own; or columns of one by rows of the other, group by group."""
    if bias is not None or offs is None:
        return None
    places = np.split(np.arange(self.shape[-1] if mat2.ndim == 2 else self.shape[0]), np.asarray(offs)[:-1])
    if self.ndim == 2 and mat2.ndim == 3:
        parts = [product(self[rows], mat2[group]) for group, rows in enumerate(places)]
        join: Callable[[list[Array]], Array] = np.concatenate
    elif self.ndim == 2 and mat2.ndim == 2:
        parts = [product(self[:, rows], mat2[rows]) for rows in places]
        join = np.stack
    else:
        return None
    shapes = [np.broadcast_to(part.rounding, part.value.shape) for part in parts]
    return Exact(join([part.value for part in parts]), join(shapes))


@arithmetic("linear")
def linear(input: Array, weight: Array, bias: Array | None = None) -> Exact:
    """x Wᵀ + b."""
    made = product(input, weight.T)
    return made if bias is None else _added(bias, made, 1, 1)
