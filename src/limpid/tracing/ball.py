"""Numbers known up to a reach: the engine's lies within `reach` of `value`, whichever way its sums were rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Float

from limpid.maths.operation import Array
from limpid.maths.rounding import FORMATS, magnitudes, smallest_normal, unit_roundoff
from limpid.tracing.parts import by_parts


@dataclass(frozen=True)
class Ball:
    """An array of midpoints and radii (ball arithmetic: Rump 1999, doi:10.1023/A:1022374804152)."""

    value: Float[Array, "..."]
    reach: Float[Array, "..."]
    formed: Float[Array, "..."] | None = None  # magnitudes that were formed on the way, where `reach` does not tell


def nearest(x: Float[Array, "..."], dtype: Any) -> Float[Array, "..."]:
    """Rounded to a format; what is too large for it stays as it is."""
    if dtype == FORMATS["fp64"]:
        return x
    stored: Array = x.astype(dtype).astype(np.float64)
    return stored if np.isfinite(stored.sum()) else np.where(np.isfinite(stored), stored, x)


def stored(ball: Ball, dtype: Any) -> Ball:
    """What a tensor of a format holds of numbers known up to a reach.

    Rounding to nearest is monotonic: the tensor's entry lies between those of both ends. Where no tie lies between
    the ends it is known exactly. What lies below the smallest normal number may be flushed to 0, here or by the
    product that it goes into; float16 keeps it.
    """
    if dtype == FORMATS["fp64"]:  # what the reference computes with: its own rounding is all there is
        return Ball(ball.value, ball.reach + unit_roundoff(dtype) * np.abs(ball.value))
    tiny = 0.0 if dtype == FORMATS["fp16"] else smallest_normal(dtype)

    def entries(value: Array, reach: Array) -> tuple[Array, Array]:
        middle = nearest(value, dtype)
        reached = np.maximum(nearest(value + reach, dtype) - middle, middle - nearest(value - reach, dtype))
        size = np.abs(middle)
        return middle, np.where(np.abs(value) - reach < tiny, np.maximum(reached, size), reached)

    return Ball(*by_parts(entries, ball.value, ball.reach))


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


def product(a: Ball, b: Ball, summed: Any, entering: float = 0.0) -> Ball:
    """a @ b, summed in a format over k terms, in any order: Higham 2002, section 3.1.

    Each term may be flushed to 0 where it lies below the smallest normal number of the format. Of what enters, each
    entry may lose a share `entering`.
    """
    value = a.value @ b.value
    terms, unit = a.value.shape[-1], unit_roundoff(summed) + unit_roundoff(np.float64)
    factor = (terms + 1) * unit + entering * (2 + entering)
    (widened,) = by_parts(lambda value, reach: (reach + factor * np.abs(value),), a.value, a.reach)
    reach = magnitudes(widened, b.value)
    reach += terms * smallest_normal(summed)
    if b.reach.any():
        reach += magnitudes(np.abs(a.value) + a.reach, b.reach)
    return Ball(value, reach)


def exactly(value: Float[Array, "..."], summed: Any) -> Ball:
    """What was recorded, as a matrix product may read it: what lies below the smallest normal number as 0."""
    tiny = smallest_normal(summed)

    def lost(part: Array) -> tuple[Array]:
        size = np.abs(part)
        return (np.where(size < tiny, size, 0.0),)

    return Ball(value, *by_parts(lost, value))
