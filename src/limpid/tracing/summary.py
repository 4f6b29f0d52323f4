"""An array in five numbers, or in one."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Shaped

from limpid.maths.operation import Array
from limpid.tracing.document import Statistics
from limpid.tracing.finite import all_finite
from limpid.tracing.parts import flat, parts


def statistics(array: Shaped[Array, "..."]) -> Statistics:
    """Mean, root mean square, least and largest of the finite entries, and how many are not finite."""
    count, total, squares, smallest, largest = 0, 0.0, 0.0, math.inf, -math.inf
    with np.errstate(over="ignore"):
        row = flat(array)
        for part in parts(array.size):
            own = row[part].astype(np.float64)
            finite = own if all_finite(own) else own[np.isfinite(own)]
            count += finite.size
            if finite.size:
                total, squares = total + float(finite.sum()), squares + float(np.vdot(finite, finite))
                smallest, largest = min(smallest, float(finite.min())), max(largest, float(finite.max()))
    if count == 0:
        return Statistics(math.nan, math.nan, math.nan, math.nan, array.size)
    return Statistics(total / count, math.sqrt(squares / count), smallest, largest, array.size - count)


def norm(*arrays: Shaped[Array, "*shape"]) -> float:
    """‖a‖ of one array, ‖a - b‖ of two, in float64."""
    squares, rows = 0.0, [flat(array) for array in arrays]
    for part in parts(arrays[0].size):
        own = [row[part].astype(np.float64) for row in rows]
        difference = own[0] if len(own) == 1 else own[0] - own[1]
        squares += float(np.vdot(difference, difference))
    return math.sqrt(squares)
