"""Vectors: lengths, angles, and which words lie near which."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError, ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch


@formula(
    r"x \cdot y = \sum_i x_i y_i = \lVert x \rVert \lVert y \rVert \cos\theta",
    Branch.LINEAR_ALGEBRA,
    "Strang 2016, Introduction to Linear Algebra, section 1.2",
    (r"\bar x_i = \bar s\, y_i", r"\bar y_i = \bar s\, x_i"),
)
def dot(x: Float[Array, " d"], y: Float[Array, " d"]) -> float:
    """Multiply two vectors entry by entry and add up.

    Takes   x, y  (d,)
    Gives   s     ()    in the product of their units
    Limits  0 for vectors at right angles
    Raises  ShapeError when the lengths differ
    """
    x, y = _of_one_length(x, y)
    return float(x @ y)


@dot.derivative
def dot_backward(s_bar: Array, x: Array, y: Array) -> tuple[Array, Array]:
    return s_bar * floats(y), s_bar * floats(x)


@formula(
    r"\lVert x \rVert = \sqrt{\sum_i x_i^2}",
    Branch.LINEAR_ALGEBRA,
    "Strang 2016, Introduction to Linear Algebra, section 1.2; scaled as in Blue 1978, doi:10.1145/355769.355771",
    (r"\bar x_i = \bar n\, x_i / \lVert x \rVert",),
)
def norm(x: Float[Array, "..."]) -> float:
    """The length of a vector; of a matrix, its Frobenius norm.

    Takes   x  (...)
    Gives   n  ()   at least 0, in the unit of x
    Limits  0 only for x = 0, where the gradient is taken as 0; squares can neither overflow nor vanish
    """
    x = floats(x)
    largest = float(np.abs(x).max(initial=0.0))
    if largest == 0.0 or not np.isfinite(largest):
        return largest
    return largest * float(np.sqrt(np.square(x / largest).sum()))


@norm.derivative
def norm_backward(n_bar: Array, x: Array) -> tuple[Array]:
    length = norm(x)
    return (n_bar * floats(x) / length if length else np.zeros_like(floats(x)),)


@formula(
    r"\cos\theta = \frac{x \cdot y}{\lVert x \rVert \lVert y \rVert}",
    Branch.LINEAR_ALGEBRA,
    "Salton, Wong & Yang 1975, section 1, doi:10.1145/361219.361220",
    (
        r"\bar x = \frac{\bar c}{\lVert x \rVert} (\hat y - c\, \hat x)",
        r"\bar y = \frac{\bar c}{\lVert y \rVert} (\hat x - c\, \hat y)",
    ),
)
def cosine_similarity(x: Float[Array, " d"], y: Float[Array, " d"]) -> float:
    """The cosine of the angle between two vectors: how alike their directions are.

    Takes   x, y  (d,)
    Gives   c     ()    between -1 (opposite) and 1 (the same direction), dimensionless
    Limits  0 at right angles; lengths do not matter
    Raises  ShapeError when the lengths differ, DomainError for a vector of zeros, which has no direction
    """
    x, y = _of_one_length(x, y)
    x, y = _of_usual_size(x), _of_usual_size(y)
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


@cosine_similarity.derivative
def cosine_similarity_backward(c_bar: Array, x: Array, y: Array) -> tuple[Array, Array]:
    x_hat, y_hat = _direction(floats(x)), _direction(floats(y))
    c = x_hat @ y_hat
    return c_bar / norm(x) * (y_hat - c * x_hat), c_bar / norm(y) * (x_hat - c * y_hat)


@formula(
    r"\operatorname{argmax}_v \frac{x \cdot E_v}{\lVert x \rVert \lVert E_v \rVert}",
    Branch.LINEAR_ALGEBRA,
    "Mikolov et al. 2013, section 4, arXiv:1301.3781",
)
def neighbours(
    x: Float[Array, " d"], table: Float[Array, "vocab d"], count: int = 5, without: tuple[int, ...] = ()
) -> list[tuple[int, float]]:
    """The rows of a table that point most nearly the same way as a vector.

    Takes   x        (d,)
            table    (vocab, d)  one vector per token
            count                how many rows
            without              rows that may not be named
    Gives   pairs of row and cosine, most alike first; rows of zeros have no direction and are left out
    Raises  ShapeError when x and the rows differ in length
    """
    x, table = floats(x), floats(table)
    if table.ndim != 2 or x.shape != table.shape[1:]:
        raise ShapeError(f"x has shape {x.shape}, table {table.shape}: its rows must be as long as x")
    largest = np.abs(table).max(-1, keepdims=True)
    scaled = np.divide(table, largest, out=np.zeros_like(table), where=largest > 0)
    lengths = np.linalg.norm(scaled, axis=-1)
    cosines = np.divide(scaled @ _direction(x), lengths, out=np.full(len(table), -np.inf), where=lengths > 0)
    cosines[list(without)] = -np.inf
    order = np.argsort(-cosines, kind="stable")[: max(0, count)]
    return [(int(row), float(cosines[row])) for row in order if np.isfinite(cosines[row])]


@formula(
    r"\operatorname{argmax}_v \cos(E_v, \hat E_b - \hat E_a + \hat E_c)",
    Branch.LINEAR_ALGEBRA,
    "Mikolov, Yih & Zweig 2013, section 4, NAACL-HLT",
)
def analogy(table: Float[Array, "vocab d"], a: int, b: int, c: int, count: int = 5) -> list[tuple[int, float]]:
    """What is to c as b is to a: man, king, woman → queen.

    Takes   table    (vocab, d)  one vector per token
            a, b, c              rows
    Gives   pairs of row and cosine, best first; a, b and c themselves are left out
    Raises  ShapeError when a row does not exist, DomainError when one of the three is all zeros
    """
    table = floats(table)
    for row in (a, b, c):
        if not 0 <= row < len(table):
            raise ShapeError(f"row {row} does not exist in a table of {len(table)}")
    sought = _direction(table[b]) - _direction(table[a]) + _direction(table[c])
    return neighbours(sought, table, count, without=(a, b, c))


def _of_one_length(x: Any, y: Any) -> tuple[Array, Array]:
    x, y = floats(x), floats(y)
    if x.ndim != 1 or x.shape != y.shape:
        raise ShapeError(f"x has shape {x.shape}, y {y.shape}: vectors of one length are needed")
    return x, y


def _direction(x: Array) -> Array:
    """The vector of length 1 that points the same way."""
    x = _of_usual_size(x)
    direction: Array = x / np.sqrt(x @ x)
    return direction


def _of_usual_size(x: Array) -> Array:
    """The same direction with a largest entry of 1, so that squares can neither overflow nor vanish."""
    largest = np.abs(x).max(initial=0.0)
    if largest == 0.0 or not np.isfinite(largest):
        raise DomainError(f"a vector whose largest entry is {largest} has no direction: leave it out")
    scaled: Array = x / largest
    return scaled
