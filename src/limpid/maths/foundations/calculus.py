"""Derivatives: exact by numbers that carry their own slope, and approximate by finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError, ShapeError
from limpid.maths.dual import Dual, as_dual, parts
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch

Function = Callable[[Any], Any]
"""Of one array; written with arithmetic, NumPy's exp, log, log1p, sqrt, sin, cos, tanh …, and formulas of limpid."""


def _along(f: Function, x: Array, direction: Array) -> Array:
    """f at x + direction · ε, as an array of duals."""
    moved = np.empty(x.shape, dtype=object)
    for index in np.ndindex(x.shape):
        moved[index] = Dual(x[index], direction[index])
    return np.asarray(f(moved if x.ndim else moved[()]), dtype=object)


def _basis(shape: tuple[int, ...]) -> list[Array]:
    return list(np.eye(math.prod(shape)).reshape(-1, *shape))


@formula(
    r"\frac{\partial f}{\partial x_i} \approx \frac{f(x + h e_i) - f(x - h e_i)}{2h}",
    Branch.CALCULUS,
    "Nocedal & Wright 2006, Numerical Optimization, eq. 8.7",
)
def finite_difference(f: Function, x: Float[Array, "..."], h: float | None = None) -> Float[Array, "..."]:
    """The gradient of a scalar function by moving each entry a little both ways.

    Takes   f  array → number
            x  (...)
            h  step; the cube root of the round-off times the entry's size when left out, which balances both errors
    Gives   (...)  an approximation: error of order h² plus round-off / h
    Limits  needs two evaluations per entry; back-propagation needs one and a half in all
    Raises  ShapeError when f gives more than one number
    """
    x = floats(x)
    gradient_ = np.empty_like(x)
    for index in np.ndindex(x.shape):
        step = h if h is not None else float(np.cbrt(np.finfo(np.float64).eps)) * max(1.0, abs(float(x[index])))
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            ends.append(_number(f(moved if x.ndim else moved[()])))
        gradient_[index] = (ends[0] - ends[1]) / (2 * step)
    return gradient_


@formula(
    r"\nabla f = \Bigl(\frac{\partial f}{\partial x_1}, \dots, \frac{\partial f}{\partial x_n}\Bigr)",
    Branch.CALCULUS,
    "Griewank & Walther 2008, Evaluating Derivatives, section 3.1",
)
def gradient(f: Function, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The gradient of a scalar function, exact: in which direction it grows fastest, and how fast.

    Takes   f  array → number, written with arithmetic, NumPy's exp, log, log1p, sqrt, sin, cos, tanh …, and whatever
               here has a gradient of its own
            x  (...)
    Gives   (...)  exact up to rounding
    Raises  ShapeError when f gives more than one number
    """
    x = floats(x)
    slopes = [_number(parts(_along(f, x, direction))[1]) for direction in _basis(x.shape)]
    return np.array(slopes, dtype=np.float64).reshape(x.shape)


@formula(
    r"J_{ij} = \frac{\partial f_i}{\partial x_j}",
    Branch.CALCULUS,
    "Jacobi 1841; Griewank & Walther 2008, section 3.1",
)
def jacobian(f: Function, x: Float[Array, " n"]) -> Float[Array, "m n"]:
    """Every derivative of every output, exact: the linear map that f is, seen from close.

    Takes   f  vector → vector
            x  (n,)
    Gives   (m, n)
    """
    x = floats(x)
    columns = [parts(np.atleast_1d(_along(f, x, direction)))[1].ravel() for direction in _basis(x.shape)]
    return np.array(columns, dtype=np.float64).T


@formula(
    r"H_{ij} = \frac{\partial^2 f}{\partial x_i \partial x_j}",
    Branch.CALCULUS,
    "Hesse 1844; Griewank & Walther 2008, section 3.1",
)
def hessian(f: Function, x: Float[Array, " n"]) -> Float[Array, "n n"]:
    """Every second derivative of a scalar function, exact: how its slope changes.

    Takes   f  vector → number
            x  (n,)
    Gives   (n, n)  symmetric
    """
    x = floats(x)
    return np.array([_hessian_times(f, x, direction) for direction in _basis(x.shape)], dtype=np.float64)


@formula(
    r"H v = \frac{d}{d\varepsilon} \nabla f(x + \varepsilon v)\Big|_{\varepsilon = 0}",
    Branch.CALCULUS,
    "Pearlmutter 1994, eq. 2, doi:10.1162/neco.1994.6.1.147",
)
def hessian_vector_product(f: Function, x: Float[Array, " n"], v: Float[Array, " n"]) -> Float[Array, " n"]:
    """How the gradient changes along one direction, without forming the Hessian; exact.

    Takes   f  vector → number
            x  (n,)
            v  (n,)
    Gives   (n,)
    Raises  ShapeError when v has not the shape of x
    """
    x, v = floats(x), floats(v)
    if x.shape != v.shape:
        raise ShapeError(f"x has shape {x.shape}, v {v.shape}: a direction has the shape of the point")
    return np.array(_hessian_times(f, x, v), dtype=np.float64)


def _hessian_times(f: Function, x: Array, v: Array) -> list[float]:
    """∂/∂ε of each ∂f/∂x_i at x + ε v: a dual whose parts are dual."""
    product = []
    for direction in _basis(x.shape):
        moved = np.empty(x.shape, dtype=object)
        for index in np.ndindex(x.shape):
            moved[index] = Dual(Dual(x[index], v[index]), Dual(direction[index], 0.0))
        result = np.asarray(f(moved), dtype=object)
        if result.size != 1:
            raise ShapeError(f"f gives {result.size} numbers: a Hessian belongs to a scalar function")
        product.append(float(as_dual(as_dual(result.reshape(-1)[0]).slope).slope))
    return product


@formula(
    r"J_{f \circ g}(x) = J_f(g(x))\, J_g(x)",
    Branch.CALCULUS,
    "Leibniz 1676; for vectors, Griewank & Walther 2008, section 2.2",
)
def chain_rule(*jacobians: Float[Array, "_ _"]) -> Float[Array, "m n"]:
    """The Jacobian of functions applied one after another: the product of theirs, the last applied standing left.

    Takes   jacobians  of the outermost function first
    Gives   their product; its size shrinks or grows like a product of norms, which is what vanishing and exploding are
    Raises  ShapeError when two neighbours do not fit
    """
    if not jacobians:
        raise ShapeError("no Jacobian was given")
    arrays = [np.atleast_2d(floats(j)) for j in jacobians]
    for outer, inner in pairwise(arrays):
        if outer.shape[1] != inner.shape[0]:
            raise ShapeError(f"a Jacobian of shape {outer.shape} cannot follow one of shape {inner.shape}")
    product: Array = reduce(np.matmul, arrays)
    return product


@formula(
    r"\nabla f = 0: \quad H \succ 0 \Rightarrow \text{minimum}, \quad H \prec 0 \Rightarrow \text{maximum}, "
    r"\quad \text{both signs} \Rightarrow \text{saddle}",
    Branch.CALCULUS,
    "Nocedal & Wright 2006, Numerical Optimization, theorem 2.4",
)
def definiteness(h: Float[Array, "n n"]) -> str:
    """What a point with zero gradient is, told by the signs of the Hessian's eigenvalues.

    Takes   h  (n, n)  symmetric
    Gives   minimum, maximum, saddle, or undecided (an eigenvalue 0, the others of one sign)
    Raises  ShapeError when h is not square, DomainError when it is not symmetric
    """
    h = floats(h)
    if h.ndim != 2 or h.shape[0] != h.shape[1]:
        raise ShapeError(f"h has shape {h.shape}: a square matrix is needed")
    if not np.allclose(h, h.T):
        raise DomainError(f"h differs from its transpose by {np.abs(h - h.T).max():g}: a Hessian is symmetric")
    values = np.linalg.eigvalsh(h)
    flat = np.abs(values) <= len(values) * np.finfo(np.float64).eps * np.abs(values).max(initial=0.0)
    up, down = bool(((values > 0) & ~flat).any()), bool(((values < 0) & ~flat).any())
    if up and down:
        return "saddle"
    return "undecided" if flat.any() else "minimum" if up else "maximum"


def _number(value: Any) -> float:
    array = np.asarray(value)
    if array.size != 1:
        raise ShapeError(f"f gives {array.size} numbers: a gradient belongs to a scalar function; see jacobian")
    return float(array.reshape(-1)[0])
