"""How far honest arithmetic may stray: the unit round-off of each format, and the bound built on it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from limpid.maths.operation import Array

FORMATS: dict[str, Any] = {
    "fp64": np.dtype(np.float64),
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}


def unit_roundoff(dtype: Any) -> float:
    """Largest relative error of rounding to nearest in this format: half the gap between 1 and the next number."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def smallest_normal(dtype: Any) -> float:
    """Below this, results may be rounded coarsely or flushed to zero; an absolute term covers it."""
    return float(ml_dtypes.finfo(dtype).tiny)


def rounded(x: Array, dtype: Any) -> Array:
    """The float64 value of `x` after rounding it to a format, to nearest with ties to even."""
    return x.astype(dtype).astype(np.float64)


def bound(expected: Array, rounding: Array, *, stored: Any, summed: Any = np.float32, roundings: int = 1) -> Array:
    """How far an engine's result may lie from `expected`, entry by entry.

    stored     format of the result: each of `roundings` roundings adds u |y|
    summed     format of the sums inside the operation: adds u · rounding (and the reference's own, in float64)
    """
    u_sum = max(unit_roundoff(summed), 0.0) + unit_roundoff(np.float64)
    error = u_sum * rounding
    return roundings * unit_roundoff(stored) * (np.abs(expected) + error) + error + smallest_normal(stored)
