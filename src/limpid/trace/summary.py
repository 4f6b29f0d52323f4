"""An array in five numbers."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Shaped

from limpid.maths.operation import Array
from limpid.trace.document import Statistics
from limpid.trace.finite import all_finite


def statistics(array: Shaped[Array, "..."]) -> Statistics:
    """Mean, root mean square, least and largest of the finite entries, and how many are not finite."""
    finite = array if all_finite(array) else array[np.isfinite(array)]
    if finite.size == 0:
        return Statistics(math.nan, math.nan, math.nan, math.nan, int(array.size))
    with np.errstate(over="ignore"):
        rms = float(np.sqrt(np.mean(np.square(finite))))
    return Statistics(
        float(finite.mean()), rms, float(finite.min()), float(finite.max()), int(array.size - finite.size)
    )
