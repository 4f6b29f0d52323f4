"""What reflections and rotations find of matrices: eigenvalues, singular values, orthonormal factors.

Orthogonal transformations are backward stable: what is found is exact for a matrix near by (Higham 2002, chapter 19),
so the relations that it satisfies are held, as the vectors themselves are not determined.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import linalg

from limpid.maths.operation import Array
from limpid.operations.exact.elementwise import FUNCTION
from limpid.operations.exact.exact import Exact, arithmetic, growth
from limpid.operations.exact.linear_algebra import Several, adjoint, of_nothing, of_triangle


def _reflected(a: Array) -> Array:
    """What orthogonal transformations of a matrix may be off, in units of u: n reflections of n terms each."""
    size = np.sqrt((np.abs(a) ** 2).sum((-2, -1)))
    found: Array = FUNCTION * growth(max(a.shape[-2:]) ** 2) * size
    return found


def _relations(*pairs: tuple[Array, Array, Array]) -> Exact:
    """What several relations come to, what they are to come to, and how far they may be off."""
    made, value, off = (
        np.concatenate([np.broadcast_to(pair[which], pair[0].shape).ravel() for pair in pairs]) for which in range(3)
    )
    return Exact(value, off, np.zeros(off.shape), held=made)


def _orthonormal(q: Array) -> tuple[Array, Array, Array]:
    return adjoint(q) @ q, np.eye(q.shape[-1]), np.asarray(FUNCTION * growth(max(q.shape[-2:]) ** 2))


@arithmetic("_linalg_eigh")
def eigh(A: Array, results: list[Any], UPLO: str = "L", compute_v: bool = True) -> Several | None:
    """A V = V Λ, Vᴴ V = 1; eigenvalues are off by no more than the matrix is (Weyl)."""
    if not A.size:
        return of_nothing(results)
    whole = of_triangle(A, UPLO)
    value, off = np.linalg.eigvalsh(whole), _reflected(whole)
    values, vectors = results
    found = Exact(value, np.broadcast_to(off[..., None], value.shape))
    if not compute_v:
        return [found, None]
    along = (whole @ vectors, vectors * values[..., None, :], off[..., None, None])
    return [found, _relations(along, _orthonormal(vectors))]


@arithmetic("_linalg_svd")
def svd(
    A: Array, results: list[Any], full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None
) -> Several | None:
    """U Σ Vᴴ = A with orthonormal columns; singular values are off by no more than the matrix is."""
    if not A.size:
        return of_nothing(results)
    value, off = np.linalg.svd(A, compute_uv=False), _reflected(A)
    left, sizes, right = results
    found = Exact(value, np.broadcast_to(off[..., None], value.shape))
    if not compute_uv:
        return [None, found, None]
    least = sizes.shape[-1]
    whole = (left[..., :least] * sizes[..., None, :]) @ right[..., :least, :]
    return [_relations((whole, A, off[..., None, None]), _orthonormal(left)), found,
            _relations(_orthonormal(adjoint(right)))]  # fmt: skip


@arithmetic("linalg_qr")
def qr(A: Array, results: list[Any], mode: str = "reduced") -> Several | None:
    """Q R = A with orthonormal columns; Rᴴ R = Aᴴ A where Q is not asked for."""
    if not A.size:
        return of_nothing(results)
    q, r = results
    off, zero = _reflected(A)[..., None, None], (np.tril(r, -1), np.zeros(()), np.zeros(()))
    if mode == "r":
        size = np.sqrt((np.abs(A) ** 2).sum((-2, -1)))[..., None, None]
        return [None, _relations((adjoint(r) @ r, adjoint(A) @ A, 2 * off * size), zero)]
    return [_relations((q @ r, A, off), _orthonormal(q)), _relations(zero)]


@arithmetic("linalg_pinv")
def pseudo_inverse(
    self: Array, atol: Any = None, rtol: Any = None, rcond: Any = None, hermitian: bool = False
) -> Exact | None:
    """V Σ⁺ Uᴴ, singular values at most max(atol, rtol σ₁) left out: told where none is near that."""
    if not self.size:
        return Exact(self.swapaxes(-1, -2))
    left, sizes, right = np.linalg.svd(of_triangle(self, "L") if hermitian else self, full_matrices=False)
    largest, asked = sizes[..., :1], rtol if rcond is None else rcond
    share = 0.0 if atol is not None and np.any(atol) else max(self.shape[-2:]) * float(np.finfo(np.float32).eps)
    share = share if asked is None else np.asarray(asked)[..., None]
    least = np.maximum(0.0 if atol is None else np.asarray(atol)[..., None], share * largest)
    off = _reflected(self)[..., None]
    if (np.abs(sizes - least) <= 2.0**-24 * off).any():
        return None
    kept = sizes > least
    turned = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=kept)
    value = (adjoint(right) * turned[..., None, :]) @ adjoint(left)
    return Exact(value, np.broadcast_to(3 * (turned.max(-1)[..., None] ** 2 * off)[..., None], value.shape))


@arithmetic("linalg_eig")
def eig(self: Array, results: list[Any]) -> Several | None:
    """A V = V Λ, columns of length 1; Σ λ is the trace."""
    values, vectors = results
    if not self.size:
        return of_nothing(results)
    off = _reflected(self)[..., None, None]
    lengths = np.sqrt((np.abs(vectors) ** 2).sum(-2))
    along = (self @ vectors, vectors * values[..., None, :], off)
    unit = (lengths, np.ones(()), np.asarray(growth(self.shape[-1]) + FUNCTION))
    return [_trace(self, values), _relations(along, unit)]


@arithmetic("linalg_eigvals")
def eigvals(self: Array, results: list[Any]) -> Exact | None:
    """Σ λ is the trace, and A - λ is singular but for what A may be off."""
    if not self.size:
        return of_nothing(results)[0]
    shifted = self[..., None, :, :] - results[0][..., None, None] * np.eye(self.shape[-1])
    least = np.linalg.svd(shifted, compute_uv=False)[..., -1]
    off = _reflected(self)[..., None]
    trace = _trace(self, results[0])
    return _relations(
        (least, np.zeros(()), off), (np.asarray(trace.held), np.asarray(trace.value), np.asarray(trace.rounding))
    )


def _trace(a: Array, values: Array) -> Exact:
    made, whole = values.sum(-1), np.trace(a, axis1=-2, axis2=-1) + 0j
    return Exact(whole, math.sqrt(a.shape[-1]) * _reflected(a), np.zeros(whole.shape), held=made)


@arithmetic("linalg_matrix_exp")
def matrix_exp(self: Array) -> Exact | None:
    """Σ Aᵏ/k!: sums and squarings, each off by what the size of A allows."""
    if not self.size:
        return Exact(self)
    size = np.abs(self).sum(-1).max(-1)[..., None, None]
    grown = np.abs(linalg.expm(np.abs(self)))
    return Exact(
        linalg.expm(self),
        FUNCTION * growth(self.shape[-1]) * (1 + size) * (grown + grown.max((-2, -1), keepdims=True) * 2.0**-24),
    )
