"""Matrices: what they do to a vector, and their shapes."""

from __future__ import annotations

import itertools

import numpy as np

from limpid.maths.foundations import matmul
from limpid.primer.exercise import UNDEFINED, Answer, Exercise, Numbers, Slip, shape, shown


def _square(rng: np.random.Generator) -> Numbers:
    return {"w": rng.integers(-4, 6, (2, 2)), "v": rng.integers(-4, 6, 2)}


def _sizes(rng: np.random.Generator) -> Numbers:
    rows, columns = 64 * rng.choice(np.arange(1, 49), 2, replace=False)
    return {"rows": int(rows), "columns": int(columns)}


def _chain(rng: np.random.Generator) -> Numbers:
    m, n, p = rng.choice(np.arange(2, 13), 3, replace=False)
    return {"m": int(m), "n": int(n), "p": int(p)}


def _backwards(m: int, n: int, p: int) -> Answer:
    """Shape of (n × p)(m × n): p meets m."""
    return shape(n, n) if m == p else UNDEFINED


def _two_squares(rng: np.random.Generator) -> Numbers:
    return {"a": rng.integers(-3, 5, (2, 2)), "b": rng.integers(-3, 5, (2, 2))}


def _wide(rng: np.random.Generator) -> Numbers:
    return {"w": rng.integers(-4, 6, (2, 3)), "v": rng.integers(-4, 6, 2)}


def _rows(w: np.ndarray, v: np.ndarray, said: str = "row {i} with v") -> str:
    """The dot product of each row with a vector, and which one it is."""
    return "; ".join(f"{said.format(i=i)}: {_dot(row, v)}" for i, row in enumerate(w, 1))


def _dot(a: np.ndarray, b: np.ndarray) -> str:
    return f"{' + '.join(f'({shown(x)} · {shown(y)})' for x, y in zip(a, b, strict=True))} = {shown(a @ b)}"


def _entries(a: np.ndarray, b: np.ndarray) -> str:
    """The entries of a product, row by row."""
    pairs = itertools.product(enumerate(a, 1), enumerate(b.T, 1))
    return "; ".join(f"row {i} of A with column {k} of B: {_dot(row, column)}" for (i, row), (k, column) in pairs)


EXERCISES = (
    Exercise(
        name="matrix-vector",
        chapter="matrices",
        first={"w": np.array([[2, 1], [0, 3]]), "v": np.array([4, 2])},
        draw=_square,
        ask="W = {w} (row by row) and v = {v}. What is W v?",
        right=matmul,
        solution=lambda w, v: _rows(w, v),
        slips=(
            Slip("transposed", lambda w, v: matmul(w.T, v), "{given} takes the columns of W with v: it is its rows."),
            Slip(
                "elementwise", lambda w, v: np.diag(w) * v, "{given} multiplies place by place: each row is added up."
            ),
            Slip(
                "not-summed",
                lambda w, v: (w * v).ravel(),
                "{given} are the products; each row's are added, so that there is one number for each row.",
            ),
            Slip("rows-added", lambda w, v: w.sum(1), "{given} adds up the rows of W without v."),
        ),
        hints=(
            "Take the first row of W.",
            "Its dot product with v is the first entry.",
            "The second row gives the second.",
        ),
    ),
    Exercise(
        name="layer-sizes",
        chapter="matrices",
        first={"rows": 512, "columns": 768},
        draw=_sizes,
        ask="A layer has a weight W of shape ({rows} × {columns}) and computes W x. How many numbers go in, how many "
        "come out? Give [in, out].",
        right=lambda rows, columns: [columns, rows],
        solution=lambda rows, columns: (
            f"x has an entry for each of {shown(columns)} columns, W x one for each of {shown(rows)} rows"
        ),
        slips=(
            Slip(
                "swapped",
                lambda rows, columns: [rows, columns],
                "{given} has them the other way round: what meets x are the columns.",
            ),
            Slip(
                "square-in",
                lambda rows, columns: [columns, columns],
                "{given}: what comes out has an entry for each row.",
            ),
            Slip("square-out", lambda rows, columns: [rows, rows], "{given}: what goes in meets the columns."),
        ),
        hints=(
            "Each row of W is multiplied with x.",
            "So a row is as long as x.",
            "Each row gives one entry of the result.",
        ),
    ),
    Exercise(
        name="matrix-matrix",
        chapter="matrices",
        first={"a": np.array([[1, 2], [0, 3]]), "b": np.array([[2, 1], [1, 4]])},
        draw=_two_squares,
        ask="A = {a} and B = {b}, both row by row. What is A B? Give its four entries row by row, as one list.",
        right=lambda a, b: matmul(a, b).ravel(),
        solution=lambda a, b: _entries(a, b),
        slips=(
            Slip(
                "elementwise", lambda a, b: (a * b).ravel(), "{given} multiplies place by place: it is row by column."
            ),
            Slip(
                "other-order", lambda a, b: matmul(b, a).ravel(), "{given} is B A: the rows come from the left matrix."
            ),
            Slip(
                "row-by-row", lambda a, b: matmul(a, b.T).ravel(), "{given} takes rows of B: from B come its columns."
            ),
            Slip(
                "column-first",
                lambda a, b: matmul(a, b).T.ravel(),
                "{given} has the right entries, but column by column: list the first row first.",
            ),
        ),
        hints=(
            "The first entry: the first row of A with the first column of B.",
            "The second entry: the same row with the second column.",
            "Then the second row of A with both columns.",
        ),
    ),
    Exercise(
        name="transpose",
        chapter="matrices",
        first={"w": np.array([[1, 0, 2], [0, 3, 1]]), "v": np.array([4, 5])},
        draw=_wide,
        ask="W = {w} (row by row) and v = {v}. What is Wᵀ v, with the transpose of W?",
        right=lambda w, v: matmul(w.T, v),
        solution=lambda w, v: _rows(w.T, v, "column {i} of W with v"),
        slips=(
            Slip(
                "reshaped",
                lambda w, v: matmul(w.reshape(3, 2), v),
                "{given} writes the entries in their old order into three rows: each column has to become a row.",
            ),
            Slip("undefined", lambda w, v: UNDEFINED, "W v is undefined, but Wᵀ has as many columns as v has entries."),
            Slip("columns-added", lambda w, v: w.sum(0), "{given} adds up the columns of W without v."),
            Slip("first-row-only", lambda w, v: w[0] * v[0], "{given} takes the first row of W alone: both count."),
        ),
        hints=("Write the first column of W as a row.", "Do so with the second and third.", "Each new row with v."),
    ),
    Exercise(
        name="product-shape",
        chapter="matrices",
        first={"m": 3, "n": 4, "p": 2},
        draw=_chain,
        ask="A has shape ({m} × {n}), B has shape ({n} × {p}). Which shape has A B?",
        right=lambda m, n, p: shape(m, p),
        solution=lambda m, n, p: f"rows of A, columns of B: {m} × {p}; the {n} in the middle are summed over",
        slips=(
            Slip(
                "inner",
                lambda m, n, p: shape(n, n),
                "{given}: the sizes that meet in the middle are summed over, and gone.",
            ),
            Slip("transposed", lambda m, n, p: shape(p, m), "{given}: the rows come from the left matrix."),
            Slip("undefined", lambda m, n, p: UNDEFINED, "It is defined: columns of A are as many as rows of B."),
        ),
        hints=("Which two sizes have to be equal?", "Those vanish.", "What is left, from left to right?"),
    ),
    Exercise(
        name="product-order",
        chapter="matrices",
        first={"m": 3, "n": 4, "p": 2},
        draw=_chain,
        ask="A has shape ({m} × {n}), B has shape ({n} × {p}). Which shape has B A? Type undefined if it has none.",
        right=_backwards,
        solution=lambda m, n, p: f"B has {p} columns, A has {m} rows: {p} ≠ {m}, so B A is undefined",
        slips=(
            Slip("as-if-ab", lambda m, n, p: shape(m, p), "{given} is the shape of A B; the order matters."),
            Slip("inner", lambda m, n, p: shape(n, n), "{given} are the outer sizes of B A; do the inner ones fit?"),
            Slip(
                "transposed", lambda m, n, p: shape(p, m), "{given} are the inner sizes of B A: they have to be equal."
            ),
        ),
        hints=("Write both shapes beside each other, B first.", "Compare the two sizes in the middle."),
    ),
)
