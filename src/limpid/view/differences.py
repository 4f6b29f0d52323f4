"""Two arrays of one shape held against each other, part by part."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from limpid.maths.operation import Array
from limpid.tracing.parts import flat, parts


@dataclass(frozen=True)
class Difference:
    """How far one array lies from another."""

    relative: float  # ‖a - b‖ / ‖b‖ of the entries where both are finite
    largest: float  # |a - b| there
    at: int
    index: tuple[int, ...]
    a: float
    b: float
    not_finite: int  # entries of which one or the other is not finite, and they differ


def difference(a: Array, b: Array) -> Difference:
    """Of two arrays of one shape, which are read once."""
    rows, others = flat(a), flat(b)
    squares, size, largest, at, odd = 0.0, 0.0, -1.0, 0, 0
    with np.errstate(invalid="ignore", over="ignore"):
        for part in parts(rows.size):
            one, other = rows[part].astype(np.float64), others[part].astype(np.float64)
            between = np.abs(one - other)
            finite = np.isfinite(between)
            odd += int(np.count_nonzero(~finite & (one != other) & ~(np.isnan(one) & np.isnan(other))))
            between = np.where(finite, between, 0.0)
            squares += float(np.vdot(between, between))
            known = np.where(finite, other, 0.0)
            size += float(np.vdot(known, known))
            place = int(np.argmax(between))
            if between[place] > largest:
                largest, at = float(between[place]), part.start + place
    index = tuple(int(i) for i in np.unravel_index(at, a.shape)) if rows.size else ()
    relative = math.sqrt(squares / size) if size else math.sqrt(squares)
    values = (float(rows[at]), float(others[at])) if rows.size else (0.0, 0.0)
    return Difference(relative, max(largest, 0.0), at, index, *values, odd)
