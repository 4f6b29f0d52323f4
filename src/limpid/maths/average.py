"""The moving average of the weights, kept beside them while they train."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError, ShapeError
from limpid.maths.formula import formula
from limpid.maths.given import floats
from limpid.maths.operation import Array, Branch


@formula(
    r"d_t = \min\!\left(d, \frac{1 + t}{10 + t}\right), \quad \bar\theta \leftarrow d_t \bar\theta + (1 - d_t)\,\theta",
    Branch.OPTIMISATION,
    "Kingma & Ba 2015, section 7.2, arXiv:1412.6980; the smaller decay at first, TensorFlow's ExponentialMovingAverage",
)
def weight_average(
    average: Float[Array, "..."], parameter: Float[Array, "..."], decay: float, number: int
) -> Float[Array, "..."]:
    """The average of a parameter after an update that left `parameter`; early ones forget the initial weights faster.

    Takes   average, parameter  (...)
            decay               d in [0, 1)
            number              t of the update; 1 is the first
    Gives   average             (...)
    Raises  ShapeError when the two differ in shape; DomainError for a decay outside [0, 1), an update before the first
    """
    average, parameter = floats(average), floats(parameter)
    if average.shape != parameter.shape:
        raise ShapeError(f"average has shape {average.shape}, parameter {parameter.shape}: one entry each")
    if not 0 <= decay < 1 or number < 1:
        raise DomainError(f"decay is {decay}, number {number}: decay lies in [0, 1), and updates are counted from 1")
    kept = decay_at(decay, number)
    return kept * average + (1 - kept) * parameter


def decay_at(decay: float, number: int) -> float:
    """d_t: by how much update `number` keeps what was averaged before."""
    return min(decay, 1 - 9 / (10 + number))


def average_rounding(
    average: Float[Array, "..."], parameter: Float[Array, "..."], decay: float, number: int
) -> Float[Array, "..."]:
    """Error bound of an engine's average, in units of its u, the rounding of the result itself left out.

    It goes a share w = 1 - d_t of the way from average to parameter, or from the other end for a w of 1/2 and more: a
    difference, w (or 1 - w, which inherits w's error) and their product are rounded, and the mathematics' own sum.
    """
    share = 1 - decay_at(decay, number)
    away: Array = np.abs(parameter - average)
    return 4 * share * away
