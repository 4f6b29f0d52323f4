"""Matrices: products, and what their singular values tell."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError, ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch


@formula(
    r"C_{ik} = \sum_j A_{ij} B_{jk}",
    Branch.LINEAR_ALGEBRA,
    "Cayley 1858, section 11, doi:10.1098/rstl.1858.0002",
    (r"\bar A = \bar C B^\top", r"\bar B = A^\top \bar C"),
)
def matmul(a: Float[Array, "*m n"], b: Float[Array, "n *p"]) -> Float[Array, "..."]:
    """Multiply a matrix by a matrix or a vector.

    Takes   a  (m, n)
            b  (n, p), or (n,)
    Gives   c  (m, p), or (m,)   2·m·n·p FLOPs, see `matmul_flops`
    Limits  AB and BA differ in general; (AB)C = A(BC); (AB)ᵀ = BᵀAᵀ
    Raises  ShapeError when a has not as many columns as b has rows
    """
    a, b = floats(a), floats(b)
    if a.ndim not in (1, 2) or b.ndim not in (1, 2) or a.shape[-1] != b.shape[0]:
        raise ShapeError(f"a has shape {a.shape}, b {b.shape}: a needs as many columns as b has rows")
    product: Array = a @ b
    return product


@matmul.derivative
def matmul_backward(
    c_bar: Float[Array, "..."], a: Float[Array, "*m n"], b: Float[Array, "n *p"]
) -> tuple[Float[Array, "*m n"], Float[Array, "n *p"]]:
    a, b = floats(a), floats(b)
    if b.ndim == 1:
        return np.multiply.outer(c_bar, b), a.T @ c_bar if a.ndim == 2 else a * c_bar
    return c_bar @ b.T, a.T @ c_bar if a.ndim == 2 else np.outer(a, c_bar)


@formula(
    r"2 m n p",
    Branch.LINEAR_ALGEBRA,
    "Golub & Van Loan 2013, Matrix Computations, section 1.1.15",
)
def matmul_flops(m: int, n: int, p: int) -> int:
    """Floating-point operations of an (m × n)(n × p) product; a multiply-add counts as two.

    Takes   m, n, p  sizes
    Gives   FLOPs; half as many multiply-adds, the other number in use
    """
    if min(m, n, p) < 0:
        raise ShapeError(f"sizes are {m}, {n}, {p}: they cannot be negative")
    return 2 * m * n * p


class SVD(NamedTuple):
    """W = U diag(σ) Vᵀ."""

    u: Array  # (m, r)  orthonormal columns: directions that come out
    singular_values: Array  # (r,)  largest first
    vt: Array  # (r, n)  orthonormal rows: directions that go in


@formula(
    r"W = U \Sigma V^\top",
    Branch.LINEAR_ALGEBRA,
    "Eckart & Young 1936, eq. 10, doi:10.1007/BF02288367",
)
def svd(w: Float[Array, "m n"]) -> SVD:
    """Take a matrix apart into a rotation, a stretching along the axes, and another rotation.

    Takes   w  (m, n)
    Gives   u (m, r), singular_values (r,) largest first, vt (r, n), with r = min(m, n)
    Limits  a matrix of zeros has singular values 0
    Raises  ShapeError when w is no matrix, DomainError when an entry is not finite
    """
    return SVD(*np.linalg.svd(_matrix(w), full_matrices=False))


class Eigen(NamedTuple):
    """A v = λ v for each column v."""

    values: Array  # (n,)  largest magnitude first; complex where they must be
    vectors: Array  # (n, n)  columns of length 1


@formula(
    r"A v = \lambda v",
    Branch.LINEAR_ALGEBRA,
    "Golub & Van Loan 2013, Matrix Computations, section 7.1",
)
def eigen(a: Float[Array, "n n"]) -> Eigen:
    """The directions that a square matrix only stretches, and by how much.

    Takes   a  (n, n)
    Gives   values (n,), largest magnitude first, and vectors (n, n), one per column
    Limits  a symmetric matrix has real values and vectors at right angles
    Raises  ShapeError when a is not square, DomainError when an entry is not finite
    """
    a = _square(a)
    values, vectors = np.linalg.eigh(a) if np.array_equal(a, a.T) else np.linalg.eig(a)
    order = np.argsort(-np.abs(values), kind="stable")
    return Eigen(values[order], vectors[:, order])


@formula(
    r"\rho(A) = \max_i |\lambda_i|",
    Branch.LINEAR_ALGEBRA,
    "Gelfand 1941; Pascanu, Mikolov & Bengio 2013, section 2.1, arXiv:1211.5063",
)
def spectral_radius(a: Float[Array, "n n"]) -> float:
    """The largest magnitude of an eigenvalue: repeated products with A grow like its powers, or shrink like them.

    Takes   a  (n, n)
    Gives   ρ  at least 0; below 1, powers of A vanish
    Raises  ShapeError when a is not square, DomainError when an entry is not finite
    """
    return float(np.abs(np.linalg.eigvals(_square(a))).max(initial=0.0))


@formula(
    r"\lVert W \rVert_2 = \sigma_1",
    Branch.LINEAR_ALGEBRA,
    "Golub & Van Loan 2013, Matrix Computations, section 2.3.3",
    (r"\bar W = \bar n\, u_1 v_1^\top",),
)
def spectral_norm(w: Float[Array, "m n"]) -> float:
    """The most by which a matrix can lengthen a vector.

    Takes   w  (m, n)
    Gives   σ₁  at least 0
    Limits  where σ₁ = σ₂ the gradient is one of several
    Raises  ShapeError when w is no matrix, DomainError when an entry is not finite
    """
    return float(svd(w).singular_values.max(initial=0.0))


@spectral_norm.derivative
def spectral_norm_backward(n_bar: Array, w: Array) -> tuple[Array]:
    u, _, vt = svd(w)
    return (n_bar * np.outer(u[:, 0], vt[0]),)


@formula(
    r"\lVert W \rVert_F = \sqrt{\operatorname{tr}(W^\top W)} = \sqrt{\textstyle\sum_i \sigma_i^2}",
    Branch.LINEAR_ALGEBRA,
    "Golub & Van Loan 2013, Matrix Computations, section 2.3.1",
    (r"\bar W = \bar n\, W / \lVert W \rVert_F",),
)
def frobenius_norm(w: Float[Array, "m n"]) -> float:
    """The length of a matrix read as one long vector.

    Takes   w  (m, n)
    Gives   n  at least 0, in the unit of w
    Limits  0 only for zeros, where the gradient is taken as 0
    Raises  ShapeError when w is no matrix
    """
    from limpid.maths.foundations.vectors import norm

    if floats(w).ndim != 2:
        raise ShapeError(f"w has shape {floats(w).shape}: a matrix is needed")
    return norm(w)


@frobenius_norm.derivative
def frobenius_norm_backward(n_bar: Array, w: Array) -> tuple[Array]:
    length = frobenius_norm(w)
    return (n_bar * floats(w) / length if length else np.zeros_like(floats(w)),)


class Approximation(NamedTuple):
    """The nearest matrix of rank k."""

    matrix: Array  # (m, n)
    error: float  # Frobenius norm of what is missing
    share: float  # of Σ σ², kept


@formula(
    r"W_k = \sum_{i \le k} \sigma_i u_i v_i^\top, \quad "
    r"\lVert W - W_k \rVert_F = \sqrt{\textstyle\sum_{i > k} \sigma_i^2}",
    Branch.LINEAR_ALGEBRA,
    "Eckart & Young 1936, doi:10.1007/BF02288367",
)
def best_rank_k(w: Float[Array, "m n"], k: int) -> Approximation:
    """The matrix of rank k that lies nearest to w: what compression and LoRA can hope for.

    Takes   w  (m, n)
            k  rank, 0 to min(m, n); more changes nothing
    Gives   the matrix, its distance to w in Frobenius norm, and the share of Σ σ² that it keeps
    Limits  k = 0 gives zeros; k ≥ rank(w) gives w
    Raises  DomainError for a negative k
    """
    if k < 0:
        raise DomainError(f"k is {k}: a rank is at least 0")
    u, sigma, vt = svd(w)
    squares = np.square(sigma)
    total = float(squares.sum())
    kept = (u[:, :k] * sigma[:k]) @ vt[:k]
    return Approximation(kept, float(np.sqrt(squares[k:].sum())), float(squares[:k].sum()) / total if total else 1.0)


@formula(
    r"\operatorname{erank}(W) = \exp\bigl(-\sum_i p_i \ln p_i\bigr), \quad p_i = \sigma_i / \textstyle\sum_j \sigma_j",
    Branch.INFORMATION,
    "Roy & Vetterli 2007, definition 1, EUSIPCO",
)
def effective_rank(w: Float[Array, "m n"]) -> float:
    """Over how many directions a matrix spreads its stretching: the perplexity of its singular values.

    Takes   w  (m, n)
    Gives   between 1 (one direction) and min(m, n) (all alike)
    Limits  0 for a matrix of zeros
    Raises  ShapeError when w is no matrix, DomainError when an entry is not finite
    """
    sigma = svd(w).singular_values
    if not sigma.any():
        return 0.0
    share = sigma / sigma.max()  # so that no sum overflows
    p = share / share.sum()
    p = p[p > 0]  # a share may be too small for a number
    return float(np.exp(-(p * np.log(p)).sum()))


@formula(
    r"\operatorname{polar}(M) = U V^\top, \quad M = U \Sigma V^\top",
    Branch.LINEAR_ALGEBRA,
    "Higham 1986, eq. 1.1, doi:10.1137/0907079; as an update, Jordan et al. 2024 (Muon)",
)
def polar_factor(m: Float[Array, "m n"]) -> Float[Array, "m n"]:
    """The nearest matrix that stretches nothing: every singular value becomes 1.

    Takes   m  (m, n)
    Gives   (m, n)  with orthonormal rows or columns, whichever are fewer
    Limits  directions with singular value 0 stay 0
    Raises  ShapeError when m is no matrix, DomainError when an entry is not finite
    """
    u, sigma, vt = svd(m)
    kept = sigma > sigma.max(initial=0.0) * max(floats(m).shape) * np.finfo(np.float64).eps
    factor: Array = u[:, kept] @ vt[kept]
    return factor


def _matrix(w: Array) -> Array:
    w = floats(w)
    if w.ndim != 2:
        raise ShapeError(f"w has shape {w.shape}: a matrix is needed")
    if not np.isfinite(w).all():
        raise DomainError(f"an entry is {w[~np.isfinite(w)][0]}: every entry must be finite")
    return w


def _square(a: Array) -> Array:
    a = _matrix(a)
    if a.shape[0] != a.shape[1]:
        raise ShapeError(f"a has shape {a.shape}: a square matrix is needed")
    return a
