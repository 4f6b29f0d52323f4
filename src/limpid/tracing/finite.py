"""Numbers that are not finite: whether there are any, and which results depend on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Shaped

from limpid.maths.operation import Array


def all_finite(array: Shaped[Array, "..."]) -> bool:
    """Whether no entry is infinite or not a number: a sum tells, unless it overflows itself."""
    return array.dtype.kind in "iub" or bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())


def dependent(
    run: Callable[[Sequence[Array]], Sequence[Array | None]], inputs: Sequence[Shaped[Array, "..."]]
) -> list[Bool[Array, "..."] | None] | None:
    """Which entries of each result follow from an input entry that is not finite; None when every input is finite.

    An entry follows from it when it moves as the input does (from 0 to more than the input's other entries), or when it
    is not finite itself with the inputs as they are. A hidden key or the vector of another token does neither.
    """
    if all(all_finite(array) for array in inputs):
        return None
    here, low, high = run(inputs), run([_filled(a, 0.0) for a in inputs]), run([_filled(a, 1.0) for a in inputs])
    return [
        None if result is None or below is None or above is None else ~np.isfinite(result) | ~(below == above)
        for result, below, above in zip(here, low, high, strict=True)
    ]


def _filled(array: Shaped[Array, "..."], share: float) -> Shaped[Array, "..."]:
    """The array with a finite number wherever it has none."""
    if all_finite(array):
        return array
    finite = np.isfinite(array)
    return np.where(finite, array, share * (1 + np.abs(array[finite]).max(initial=0.0)))
