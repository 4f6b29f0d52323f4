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


def bound(
    expected: Array, rounding: Array, *, stored: Any, summed: Any = np.float32, storage: Array | None = None
) -> Array:
    """How far an engine's result may lie from `expected`, entry by entry.

    rounding   errors of the sums inside, in units of u of the format `summed` (and of the reference's float64)
    storage    errors of rounding to the format `stored`, in units of its u; None is one rounding of the result
    """
    error = (unit_roundoff(summed) + unit_roundoff(np.float64)) * rounding
    kept = np.abs(expected) if storage is None else storage
    return unit_roundoff(stored) * (kept + error) + error + smallest_normal(stored)


def dots(a: Array, b: Array) -> Array:
    """Σ a b along the last axis, which stays with length 1; the products are not kept."""
    if not type(a) is type(b) is np.ndarray:  # arrays that disturb each operation are to see these
        along: Array = (a * b).sum(-1, keepdims=True)
        return along
    return np.asarray(np.einsum("...i,...i->...", a, b))[..., None]


def magnitudes(a: Array, b: Array) -> Array:
    """At least |a| @ |b|, summed in float32: a bound need not be exact, and takes half the time so.

    Each of the k terms is rounded three times and their sum k times; what is too small for float32 is added back.
    """
    sizes = [max(float(x.max(initial=0.0)), -float(x.min(initial=0.0))) for x in (a, b)]
    if not all(1e-9 < size < 1e9 for size in sizes):  # products would leave float32, or a number is not finite
        exact: Array = np.abs(a) @ np.abs(b)
        return exact
    terms, unit = a.shape[-1], unit_roundoff(np.float32)
    narrow = [x.astype(np.float32) for x in (a, b)]
    found = np.matmul(*(np.abs(x, out=x) for x in narrow)).astype(np.float64)
    found *= (1 + unit) ** (terms + 3)
    found += terms * smallest_normal(np.float32) * (1 + sum(sizes))
    return found
