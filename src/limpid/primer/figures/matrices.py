"""A matrix times a vector, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from limpid.maths.foundations import matmul
from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.svg import FIRST, MUTED, SECOND, boxed, drawing, words

CELL, GAP, TOP = 44, 6, 34
Matrix = Sequence[Sequence[float]]


def matrix_vector_svg(w: Matrix, v: Sequence[float], row: int = 0) -> str:
    """A grid, the vector beside it, and the result; one row with what it makes is marked."""
    rows, columns, made = len(w), len(v), matmul(np.asarray(w), np.asarray(v))
    at = [20, 20 + columns * (CELL + GAP) + 34, 20 + columns * (CELL + GAP) + 122]
    parts = [words(at[0] + columns * (CELL + GAP) / 2 - 3, 20, "W", "middle", MUTED)]
    parts += [words(left + CELL / 2, 20, name, "middle", MUTED) for left, name in ((at[1], "v"), (at[2], "W v"))]
    for i in range(rows):
        colour = SECOND if i == row else MUTED
        for j in range(columns):
            parts += [_cell(at[0] + j * (CELL + GAP), i, w[i][j], colour, i == row)]
        parts += [_cell(at[2], i, made[i], colour, i == row)]
        sums = " + ".join(f"{shown(x)}·{shown(y)}" for x, y in zip(w[i], v, strict=True))
        parts += [words(at[2] + CELL + 14, _middle(i) + 5, sums, fill=colour)]
    parts += [_cell(at[1], j, v[j], FIRST, filled=True) for j in range(columns)]
    equals = _middle((rows - 1) / 2)
    parts += [words(at[1] - 18, equals + 5, "·", "middle"), words(at[2] - 20, equals + 5, "=", "middle")]
    width = at[2] + CELL + 30 + 8 * max(len(shown(list(line_of))) + 3 * columns for line_of in w)
    return drawing(int(width), TOP + max(rows, columns) * (CELL + GAP) + 10, f"{shown(w)} times {shown(v)}", parts)


def _middle(row: float) -> float:
    return TOP + row * (CELL + GAP) + CELL / 2


def _cell(x: float, row: int, value: float, stroke: str, filled: bool) -> str:
    return boxed(x, TOP + row * (CELL + GAP), CELL, CELL, shown(value), stroke, filled)


def matrix_vector_text(w: Matrix, v: Sequence[float], row: int = 0) -> str:
    """Each row of the grid with the products that it adds up; the marked row has an arrow."""
    made = matmul(np.asarray(w), np.asarray(v))
    lines = [f"v = {shown(v)}"]
    for i, entries in enumerate(w):
        sums = " + ".join(f"{shown(x)}·{shown(y)}" for x, y in zip(entries, v, strict=True))
        lines.append(f"{'→' if i == row else ' '} row {i + 1}: {shown(entries):16} with v: {sums} = {shown(made[i])}")
    return "\n".join((*lines, f"W v = {shown(made)}"))


FIGURES = {"matrix-vector": Drawn(matrix_vector_svg, matrix_vector_text)}
