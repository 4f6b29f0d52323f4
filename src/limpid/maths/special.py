"""The complementary error function, on arrays: NumPy has none."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from limpid.maths.operation import Array

Polynomial = tuple[float, ...]
"""Coefficients, highest power first."""

# erf(x) = x · N(x²) / D(x²) up to 0.46875
SMALL_N: Polynomial = (
    1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3,
)  # fmt: skip
SMALL_D: Polynomial = (
    1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3,
)  # fmt: skip
# erfc(x) = exp(-x²) · N(x) / D(x) up to 4
MIDDLE_N: Polynomial = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1, 2.98635138197400131e2,
    8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3,
)  # fmt: skip
MIDDLE_D: Polynomial = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
    3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
)  # fmt: skip
# erfc(x) = exp(-x²) / x · (1/√π - N(1/x²) / D(1/x²) / x²) beyond
LARGE_N: Polynomial = (
    1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
    1.60837851487422766e-2, 6.58749161529837803e-4,
)  # fmt: skip
LARGE_D: Polynomial = (
    1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1, 6.05183413124413191e-2,
    2.33520497626869185e-3,
)  # fmt: skip


def erfc(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """2/√π ∫ₓ^∞ exp(-t²) dt, entry by entry, to a few units in the last place, however small it is.

    Source: Cody 1969, Mathematics of Computation 23, 631-637, doi:10.1090/S0025-5718-1969-0247736-4.
    """
    size = np.abs(x)
    beyond = np.empty_like(size)  # erfc(|x|)
    small, large = size <= 0.46875, size > 4.0
    middle = ~(small | large)  # not a number stays not a number here
    beyond[small] = 1 - _erf_small(size[small])
    beyond[middle] = _erfc_middle(size[middle])
    beyond[large] = _erfc_large(np.minimum(size[large], 64.0))  # the result is 0 from 27 on
    return np.where(x < 0, 2 - beyond, beyond)


def _erf_small(x: Float[Array, " n"]) -> Float[Array, " n"]:
    return x * _ratio(SMALL_N, SMALL_D, x * x)


def _erfc_middle(x: Float[Array, " n"]) -> Float[Array, " n"]:
    return _exp_of_minus_square(x) * _ratio(MIDDLE_N, MIDDLE_D, x)


def _erfc_large(x: Float[Array, " n"]) -> Float[Array, " n"]:
    square = 1 / (x * x)
    series = 1 / math.sqrt(math.pi) - square * _ratio(LARGE_N, LARGE_D, square)
    return _exp_of_minus_square(x) * series / x


def _exp_of_minus_square(x: Float[Array, " n"]) -> Float[Array, " n"]:
    """exp(-x²) with x² in two parts: rounded once, a large x² would spoil the last digits of its exponential."""
    near = np.floor(x * 16) / 16  # its square is exact
    result: Array = np.exp(-near * near) * np.exp(-(x - near) * (x + near))
    return result


def _ratio(numerator: Polynomial, denominator: Polynomial, x: Float[Array, " n"]) -> Float[Array, " n"]:
    """N(x) / D(x), each by Horner's rule in place."""
    above, below = (np.full_like(x, polynomial[0]) for polynomial in (numerator, denominator))
    for n, d in zip(numerator[1:], denominator[1:], strict=True):
        above *= x
        above += n
        below *= x
        below += d
    above /= below
    return above
