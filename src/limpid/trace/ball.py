"""Numbers known up to a reach: the engine's lies within `reach` of `value`, whichever way its sums were rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Float

from limpid.maths.operation import Array
from limpid.maths.rounding import FORMATS, smallest_normal, unit_roundoff


@dataclass(frozen=True)
class Ball:
    """An array of midpoints and radii (ball arithmetic: Rump 1999, doi:10.1023/A:1022374804152)."""

    value: Float[Array, "..."]
    reach: Float[Array, "..."]


def nearest(x: Float[Array, "..."], dtype: Any) -> Float[Array, "..."]:
    """Rounded to a format; what is too large for it stays as it is."""
    if dtype == FORMATS["fp64"]:
        return x
    stored: Array = x.astype(dtype).astype(np.float64)
    return stored if np.isfinite(stored.sum()) else np.where(np.isfinite(stored), stored, x)


def stored(ball: Ball, dtype: Any) -> Ball:
    """What a tensor of a format holds of numbers known up to a reach.

    Rounding to nearest is monotonic: the tensor's entry lies between those of both ends. Where no tie lies between
    the ends it is known exactly.
    """
    value, reach = ball.value, ball.reach
    if dtype == FORMATS["fp64"]:  # what the reference computes with: its own rounding is all there is
        return Ball(value, reach + unit_roundoff(dtype) * np.abs(value))
    middle = nearest(value, dtype)
    return Ball(middle, np.maximum(nearest(value + reach, dtype) - middle, middle - nearest(value - reach, dtype)))


def limit(ball: Ball, dtype: Any) -> Float[Array, "..."]:
    """How far from `value` a tensor of a format may lie."""
    value, reach = ball.value, ball.reach
    if dtype == FORMATS["fp64"]:
        return reach + unit_roundoff(dtype) * np.abs(value) + smallest_normal(dtype)
    above, below = nearest(value + reach, dtype) - value, value - nearest(value - reach, dtype)
    return np.maximum(above, below) + underflow(dtype)


def underflow(dtype: Any) -> float:
    """What may be lost near 0.

    float16 keeps its subnormal numbers on every processor and GPU, and half the gap between them is lost; bfloat16 and
    float32 may flush theirs to 0.
    """
    if dtype == FORMATS["fp16"]:
        return float(ml_dtypes.finfo(dtype).smallest_subnormal) / 2
    return smallest_normal(dtype)


def product(a: Ball, b: Ball, unit: float) -> Ball:
    """a @ b, summed in a format with unit round-off `unit` over k terms, in any order: Higham 2002, section 3.1."""
    value = a.value @ b.value
    size_a, size_b = np.abs(a.value), np.abs(b.value)
    gamma = (a.value.shape[-1] + 1) * unit
    reach = (a.reach + gamma * size_a) @ size_b
    if b.reach.any():
        reach = reach + (size_a + a.reach) @ b.reach
    return Ball(value, reach)


def exactly(value: Float[Array, "..."]) -> Ball:
    """What was recorded: known as it is."""
    return Ball(value, np.zeros(np.shape(value)))
