"""A whole array against its scatter: rounding is nearly unbiased, so a departure must not lie along the array itself.

One entry may round by as much as a fault of a few percent moves it; the sum over an array, a head or a row may not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from limpid.maths.operation import Array
from limpid.tracing.kernels.random_rounding import Sampled, quantile
from limpid.tracing.verdict import Beyond, Check, Holds


def with_systematic(check: Check, engine: Array, expected: Sampled, axes: Sequence[str]) -> Check:
    """The check of every entry, or, where it stands worse, that of <d, x> / <x, x>, d the departure and x exact.

    Its standard error is that of the same projection in runs with random rounding, over the whole array and over every
    slice along every axis.
    """
    if not isinstance(check.verdict, Holds):
        return check
    exact = expected.value
    if exact.ndim == 0:
        return check
    tests = 1 + sum(exact.shape)
    limit = quantile(expected.probability, tests)
    for over, ratio, error in _projections(engine - exact, expected, axes):
        share = abs(ratio) / (limit * error) if error > 0 else 0.0
        if share > check.worst:
            verdict = Beyond((), 1 + ratio, 1.0, limit * error, share) if share > 1 else Holds(share)
            check = replace(
                check, verdict=verdict, worst=share, index=(), engine=1 + ratio, expected=1.0, bound=limit * error,
                over=over,
            )  # fmt: skip
    return check


def _projections(departure: Array, expected: Sampled, axes: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    """Along the whole array, and the worst slice along each axis: where, how much, and its standard error."""
    exact = expected.value
    for axis in (None, *range(exact.ndim)):
        others = None if axis is None else tuple(other for other in range(exact.ndim) if other != axis)
        square = np.atleast_1d(np.square(exact).sum(others))
        along = np.atleast_1d((departure * exact).sum(others))
        errors = [np.square(np.atleast_1d((one * exact).sum(others))) for one in expected.departures]
        error = np.sqrt(np.mean(errors, 0))
        worst = int(np.argmax(np.where(error > 0, np.abs(along) / np.where(error > 0, error, 1.0), 0.0)))
        if square[worst] > 0:
            over = "the whole array" if axis is None else f"{_axis(axes, axis)} {worst}"
            yield over, float(along[worst] / square[worst]), float(error[worst] / square[worst])


def _axis(axes: Sequence[str], axis: int) -> str:
    return axes[axis] if axis < len(axes) else f"axis {axis},"
