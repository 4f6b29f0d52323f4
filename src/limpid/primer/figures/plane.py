"""Arrows of a plane in characters, to one scale in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from limpid.maths.operation import Array

COLUMNS, ROWS = 56, 14
"""At most, besides names."""
TALL = 2.1
"""How many times as tall as wide a character is."""
SHAFT, HEAD, SHADOW = "·", "●", "▒"


def plane_text(arrows: Mapping[str, Sequence[float]], shadow: Array | None = None) -> str:
    """Each arrow from the origin, its name at its head; a shadow is drawn over them."""
    ends = np.array([(0.0, 0.0), *arrows.values()], dtype=np.float64)
    corners = ends if shadow is None else np.vstack((ends, shadow))
    low, high = corners.min(0), corners.max(0)
    across, up = np.maximum(high - low, 1e-9)
    unit = min((COLUMNS - 1) / across, (ROWS - 1) * TALL / up)  # columns for each 1
    grid = [[" "] * (round(across * unit) + 1) for _ in range(round(up * unit / TALL) + 1)]

    def cell(place: Array) -> tuple[int, int]:
        return round(float((high[1] - place[1]) * unit / TALL)), round(float((place[0] - low[0]) * unit))

    def draw(end: Array, mark: str) -> None:
        for share in np.linspace(0, 1, 4 * COLUMNS):
            row, column = cell(share * end)
            grid[row][column] = mark

    for end in ends[1:]:
        draw(end, SHAFT)
    if shadow is not None:
        draw(shadow, SHADOW)
    row, column = cell(ends[0])
    grid[row][column] = "0"
    for name, end in zip(arrows, ends[1:], strict=True):
        row, column = cell(end)
        grid[row] += " " * (column + len(name) + 2 - len(grid[row]))
        grid[row][column : column + len(name) + 2] = [HEAD, " ", *name]
    return "\n".join("".join(line).rstrip() for line in grid)
