"""The normal distribution: its density, and the probability of an interval."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch

SOURCE = "Gauss 1809, Theoria motus corporum coelestium, section 177; in these letters, Feller 1968, section VII.1"


@formula(r"f(x) = \frac{1}{\sigma \sqrt{2 \pi}} e^{-\frac12 ((x - \mu) / \sigma)^2}", Branch.PROBABILITY, SOURCE)
def normal_density(x: Float[Array, "..."], mean: float = 0.0, std: float = 1.0) -> Float[Array, "..."]:
    """How densely the values of a normal distribution lie around a place.

    Takes   x     (...)
            mean  μ, in the unit of x
            std   σ, above 0, in the unit of x
    Gives   f     (...)  probability per unit of x: it may exceed 1
    Limits  highest at the mean; 0 at ±∞
    Raises  DomainError for σ ≤ 0
    """
    _require_width(std)
    density: Array = np.exp(-0.5 * np.square((floats(x) - mean) / std)) / (std * math.sqrt(2 * math.pi))
    return density


@formula(
    r"P(a \le X \le b) = \int_a^b f(x)\, dx = \tfrac12 \left( \operatorname{erf} \frac{b - \mu}{\sigma \sqrt2} - "
    r"\operatorname{erf} \frac{a - \mu}{\sigma \sqrt2} \right)",
    Branch.PROBABILITY,
    SOURCE,
)
def normal_probability(low: float, high: float, mean: float = 0.0, std: float = 1.0) -> float:
    """How probable it is that a normally distributed number lies between two others: the area under its density.

    Takes   low, high  ends of the interval; -∞ and ∞ are ends too
            mean       μ, in their unit
            std        σ, above 0, in their unit
    Gives   P          in [0, 1]
    Limits  0 for an interval of no width; 1 from -∞ to ∞; far from the mean no digit is lost
    Raises  DomainError for σ ≤ 0, or ends in the wrong order
    """
    _require_width(std)
    if not low <= high:
        raise DomainError(f"low is {low}, high {high}: an interval goes from the lower end to the higher")
    a, b = ((end - mean) / (std * math.sqrt(2)) for end in (low, high))
    if a > 0:
        a, b = -b, -a  # both tails are alike, and the lower one is counted from 0
    return 0.5 * (math.erfc(-b) - math.erfc(-a)) if b <= 0 else 0.5 * (math.erf(b) - math.erf(a))


def _require_width(std: float) -> None:
    if not std > 0:
        raise DomainError(f"std is {std}: it must be above 0")
