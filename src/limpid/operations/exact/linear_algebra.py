"""Factors of matrices and what is solved with them: by what their product, or the solution's, is to come to.

Elimination and substitution are backward stable: the computed result is that of a matrix off by ΔA, |ΔA| ≤ γ |L| |U|
(Higham 2002, Accuracy and Stability of Numerical Algorithms, theorems 8.5, 9.3, 9.4 and 10.3), so residuals are held.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from limpid.maths.operation import Array
from limpid.operations.exact.elementwise import FUNCTION
from limpid.operations.exact.exact import Exact, arithmetic, growth, movement
from limpid.operations.exact.movement import Raw

Several = list[Exact | None]


def adjoint(a: Array) -> Array:
    """Rows and columns exchanged, conjugated."""
    return a.conj().swapaxes(-1, -2)


def _eliminated(a: Array) -> Array:
    """|L| |U| of A with its rows exchanged for pivots, in the order of A's rows."""
    p, lower, upper = linalg.lu(a)
    return np.asarray(p) @ (np.abs(lower) @ np.abs(upper))


def _backward_error(a: Array) -> Array:
    """How far a matrix may be off for which LU factors of it, or of its transpose, solve exactly, in units of u."""
    size = _eliminated(a) + _eliminated(a.swapaxes(-1, -2)).swapaxes(-1, -2)
    return 3 * growth(a.shape[-1]) * size


def _is_matrix(a: Array, b: Array) -> bool:
    """Whether ATen takes b for matrices: vectors are of one axis less, or of none more."""
    return not (b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1]))


def of_triangle(a: Array, which: str) -> Array:
    """The Hermitian matrix of which one triangle is read."""
    below = np.tril(a) if which.upper() == "L" else adjoint(np.triu(a))
    return below + adjoint(np.tril(below, -1))


def of_nothing(results: list[Any]) -> Several:
    """Of a matrix without entries: what has none either."""
    return [Exact(one) if one is not None and not one.size else None for one in results]


def _solved(a: Array, b: Array, x: Array, error: Array) -> Exact:
    """A x held against b, where |ΔA| ≤ error u."""
    made = a @ x
    wide = np.broadcast_to(b, made.shape)
    rounding = error @ np.abs(x) + FUNCTION * np.abs(wide)
    return Exact(wide, rounding, np.abs(a) @ np.abs(x), held=made, solution=_solution(a, wide))


def _solution(a: Array, b: Array) -> Array | None:
    try:
        found: Array = np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        return None
    return found


def unpacked(packed: Array, pivots: Array) -> tuple[Array, Array, Array]:
    """P, L and U of factors in one array, and rows exchanged one after the other, counted from 1."""
    rows, columns = packed.shape[-2:]
    least = min(rows, columns)
    lower = np.tril(packed[..., :least], -1) + np.eye(rows, least)
    places = np.broadcast_to(np.arange(rows), (*packed.shape[:-2], rows)).copy()
    for at in range(pivots.shape[-1]):
        other = pivots[..., at : at + 1] - 1
        first, second = places[..., at : at + 1].copy(), np.take_along_axis(places, other, -1)
        np.put_along_axis(places, other, first, -1)
        places[..., at : at + 1] = second
    exchange = np.swapaxes(np.eye(rows)[places], -1, -2)
    return exchange, lower, np.triu(packed[..., :least, :])


def _factored(a: Array, packed: Array, pivots: Array) -> Exact:
    """P L U held against A, or against its transpose where a kernel took that one."""
    p, lower, upper = unpacked(packed, pivots)
    made = p @ lower @ upper
    if a.shape[-2] == a.shape[-1]:
        turned = a.swapaxes(-1, -2)
        a = turned if np.abs(made - turned).sum() < np.abs(made - a).sum() else a
    size = p @ (np.abs(lower) @ np.abs(upper))
    return Exact(a, growth(min(a.shape[-2:])) * size, size, held=made)


@arithmetic("linalg_lu_factor_ex")
def lu_factors(A: Array, pivot: bool, results: list[Any], check_errors: bool = False) -> Several | None:
    """P L U = A."""
    if not A.size:
        return of_nothing(results)
    return [_factored(A, *results[:2]), None, None] if pivot else None


@arithmetic("linalg_lu")
def lu(A: Array, pivot: bool, results: list[Any]) -> Several | None:
    """P, L and U by themselves."""
    if not A.size:
        return of_nothing(results)
    if not pivot:
        return None
    p, lower, upper = results
    size = p @ (np.abs(lower) @ np.abs(upper))
    return [None, Exact(A, growth(min(A.shape[-2:])) * size, size, held=p @ lower @ upper), None]


@movement("lu_unpack")
def lu_unpacked(LU_data: Raw, LU_pivots: Raw, unpack_data: bool = True, unpack_pivots: bool = True) -> list[Any]:
    """P, L and U from one array."""
    p, lower, upper = unpacked(LU_data, LU_pivots)
    triangles = [lower.astype(LU_data.dtype), upper] if unpack_data else [None, None]
    return [p.astype(LU_data.dtype) if unpack_pivots else None, *triangles]


@arithmetic("_linalg_solve_ex")
def solve(A: Array, B: Array, results: list[Any], left: bool = True, check_errors: bool = False) -> Several | None:
    """A x = b, or x A = b; and the factors."""
    x, packed, pivots, info = results
    if not A.size or not x.size:
        return of_nothing(results)
    if np.any(info):
        return None
    if not _is_matrix(A, B):
        found = _solved(A, B[..., None], x[..., None], _backward_error(A))
    elif left:
        found = _solved(A, B, x, _backward_error(A))
    else:
        turned = A.swapaxes(-1, -2)
        found = _solved(turned, B.swapaxes(-1, -2), x.swapaxes(-1, -2), _backward_error(turned))
        found = Exact(found.value, found.rounding, found.storage, held=found.held)
    if found.solution is not None and found.solution.shape != x.shape:
        found = Exact(found.value, found.rounding, found.storage, None, found.held, found.solution.reshape(x.shape))
    return [found, _factored(A, packed, pivots), None, None]


@arithmetic("linalg_inv_ex")
def inverse(A: Array, results: list[Any], check_errors: bool = False) -> Several | None:
    """A X = 1."""
    made, info = results
    if not A.size:
        return of_nothing(results)
    if np.any(info):
        return None
    return [_solved(A, np.broadcast_to(np.eye(A.shape[-1]), A.shape), made, _backward_error(A)), None]


@arithmetic("linalg_lu_solve")
def lu_solve(
    LU: Array, pivots: Array, B: Array, results: list[Any], left: bool = True, adjoint: bool = False
) -> Exact | None:
    """P L U x = b."""
    if not LU.size or not results[0].size:
        return of_nothing(results)[0]
    p, lower, upper = unpacked(LU, pivots)
    whole, size = p @ lower @ upper, p @ (np.abs(lower) @ np.abs(upper))
    if adjoint:
        whole, size = whole.conj().swapaxes(-1, -2), size.swapaxes(-1, -2)
    x = results[0]
    if not left:
        whole, size, B, x = (one.swapaxes(-1, -2) for one in (whole, size, B, x))
    found = _solved(whole, B, x, 3 * growth(LU.shape[-1]) * size)
    return found if left else Exact(found.value, found.rounding, found.storage, held=found.held)


@arithmetic("linalg_solve_triangular")
def solve_triangular(
    self: Array, B: Array, results: list[Any], upper: bool, left: bool = True, unitriangular: bool = False
) -> Exact | None:
    """T x = b, or x T = b; what is on the other side of the diagonal is not read."""
    triangle = np.triu(self) if upper else np.tril(self)
    if unitriangular:
        triangle = np.triu(triangle, 1) + np.tril(triangle, -1) + np.eye(self.shape[-1])
    if not triangle.size or not results[0].size:
        return of_nothing(results)[0]
    x = results[0]
    if not left:
        triangle, B, x = (one.swapaxes(-1, -2) for one in (triangle, B, x))
    found = _solved(triangle, B, x, growth(triangle.shape[-1]) * np.abs(triangle))
    return found if left else Exact(found.value, found.rounding, found.storage, held=found.held)


@arithmetic("triangular_solve")
def triangular_solve(
    self: Array, A: Array, results: list[Any], upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Several:
    """The same, and the matrix again."""
    given = A.swapaxes(-1, -2) if transpose else A
    return [solve_triangular(given, self, results, upper != transpose, True, unitriangular), None]


@arithmetic("linalg_cholesky_ex", "cholesky")
def cholesky(
    self: Array, results: list[Any], name: str, upper: bool = False, check_errors: bool = False
) -> Several | Exact | None:
    """L Lᴴ = A, of which one triangle is read."""
    if not self.size:
        return of_nothing(results)[0] if name == "cholesky" else of_nothing(results)
    if np.any(results[1:]):
        return None
    factor = adjoint(results[0]) if upper else results[0]
    whole = of_triangle(self, "U" if upper else "L")
    size = np.abs(factor) @ np.abs(adjoint(factor))
    found = Exact(whole, growth(self.shape[-1] + 1) * size, size, held=factor @ adjoint(factor))
    return found if name == "cholesky" else [found, None]


@arithmetic("cholesky_solve")
def cholesky_solve(self: Array, input2: Array, results: list[Any], upper: bool = False) -> Exact | None:
    """L Lᴴ x = b."""
    factor = adjoint(np.triu(input2)) if upper else np.tril(input2)
    if not factor.size or not self.size:
        return of_nothing(results)[0]
    size = np.abs(factor) @ np.abs(adjoint(factor))
    return _solved(factor @ adjoint(factor), self, results[0], 3 * growth(factor.shape[-1]) * size)


@arithmetic("cholesky_inverse")
def cholesky_inverse(self: Array, results: list[Any], upper: bool = False) -> Exact | None:
    """L Lᴴ X = 1, to first order of what the inverse of L may be off."""
    factor = adjoint(np.triu(self)) if upper else np.tril(self)
    if not factor.size:
        return of_nothing(results)[0]
    inner = np.linalg.inv(factor)
    value = adjoint(inner) @ inner
    off = np.abs(inner) @ np.abs(factor) @ np.abs(inner)  # of the inverse of L (Higham 2002, theorem 14.1)
    rounding = 2 * growth(factor.shape[-1]) * np.abs(adjoint(inner)) @ (off + np.abs(inner))
    return Exact(value, rounding + rounding.swapaxes(-1, -2))


def _cofactors(a: Array, off: Array) -> Array:
    """Magnitudes of dA's weights in d det A, of singular matrices too: each singular value may be off as A is."""
    left, sizes, right = np.linalg.svd(a)
    sizes = sizes + np.sqrt((off**2).sum((-2, -1)))[..., None] * 2.0**-24
    others = np.stack([np.delete(sizes, at, -1).prod(-1) for at in range(sizes.shape[-1])], -1)
    return np.abs((left * others[..., None, :]) @ right).conj()


@arithmetic("_linalg_det")
def det(A: Array, results: list[Any]) -> Several | None:
    """The product of U's diagonal, as far as A may be off."""
    if not A.size:
        return [Exact(np.asarray(np.linalg.det(A))), *of_nothing(results[1:])]
    value, off = np.linalg.det(A), _backward_error(A)
    rounding = (_cofactors(A, off) * off).sum((-2, -1)) + growth(A.shape[-1]) * np.abs(value)
    return [Exact(np.asarray(value), rounding), _factored(A, *results[1:]), None]


@arithmetic("_linalg_slogdet")
def slogdet(A: Array, results: list[Any]) -> Several | None:
    """Its sign, and its logarithm: that is off by what the determinant is off relatively."""
    if not A.size:
        return [*(Exact(np.asarray(one)) for one in np.linalg.slogdet(A)), *of_nothing(results[2:])]
    sign, value = np.linalg.slogdet(A)
    if not np.isfinite(value).all():
        return None
    off = (np.abs(np.linalg.inv(A)).swapaxes(-1, -2) * _backward_error(A)).sum((-2, -1))
    sizes = np.abs(np.log(np.abs(np.diagonal(unpacked(*results[2:])[2], 0, -2, -1)))).sum(-1)
    found = Exact(np.asarray(value), off + (growth(A.shape[-1]) + FUNCTION) * (sizes + 1))
    return [Exact(np.asarray(sign), off * np.abs(sign)), found, _factored(A, *results[2:]), None]


@arithmetic("linalg_cross")
def cross(self: Array, other: Array, dim: int = -1) -> Exact:
    """a × b of an axis of three."""
    a, b = (np.moveaxis(one, dim, -1) for one in np.broadcast_arrays(self, other))
    left = np.roll(a, -1, -1) * np.roll(b, -2, -1), np.roll(a, -2, -1) * np.roll(b, -1, -1)
    return Exact(
        *(np.moveaxis(one, -1, dim) for one in (left[0] - left[1], FUNCTION * (np.abs(left[0]) + np.abs(left[1]))))
    )


@movement("_linalg_check_errors")
def no_errors(info: Raw, api_name: str, is_matrix: bool) -> list[Any]:
    """It raises, or gives nothing."""
    return []
