"""How much an operation amplifies what came in: its condition along the data that it was given.

A condition of κ loses log₁₀ κ digits: inputs that are right to 1 in 10⁷ give results that are right to κ in 10⁷.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.arrays import exact, is_float
from limpid.operations.evaluate import evaluate
from limpid.operations.exact.movement import Raw
from limpid.operations.redo import mapped_arrays

STEP = 2.0**-20
"""By which every input is changed, of itself, with a sign of its own."""
SIGNS = np.random.default_rng(0).choice(np.array([-1.0, 1.0]), 4093)
"""Repeated along an input; of a prime length, so that rows of no usual size have the same ones."""


def condition(
    operation: Any, given: dict[str, Any], results: list[Raw | None], errors: Sequence[Array | None]
) -> float:
    """κ = ‖f(x (1 + h s)) - f(x)‖ / (h ‖f(x)‖) for signs s of every entry of x, over the first result.

    given    arguments as they were before the call, in their own formats
    results  the engine's
    errors   its results less exact ones

    Raises  Unknown where the operation is not in the table
    """
    place = next((place for place, one in enumerate(errors) if one is not None and results[place] is not None), None)
    if place is None:
        return 0.0
    engine, error = results[place], errors[place]
    assert engine is not None
    assert error is not None
    turns = count()
    several = evaluate(operation, mapped_arrays(given, lambda array: _moved(array, next(turns))), results)
    moved = several[place] if place < len(several) else None
    if moved is None:
        return 0.0
    with np.errstate(all="ignore"):
        value = exact(engine) - error
        there = np.isfinite(value) & np.isfinite(moved)
        size = float(np.linalg.norm(np.where(there, value, 0)))
        change = float(np.linalg.norm(np.where(there, moved - value, 0)))
    return change / (STEP * size) if size else 0.0


def _moved(array: Raw, turn: int) -> Raw:
    """With every entry changed; other signs for each input."""
    if not is_float(array):
        return array
    found = exact(array)
    with np.errstate(all="ignore"):
        return found * (1 + STEP * np.resize(np.roll(SIGNS, 997 * turn), found.shape))
