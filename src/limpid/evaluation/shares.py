"""Intervals of shares: of independent answers, of answers that come in groups, and of the difference of two.

Score intervals, so that a share of 0 or 1 has one too, and none leaves 0 … 1.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64

from limpid.evaluation.intervals import Estimate

Array = np.ndarray
Groups = Float64[Array, " group"]


def wilson(p: float, count: float, confidence: float) -> Estimate:
    """A share of `count` independent answers. Source: Wilson 1927, doi:10.1080/01621459.1927.10502953."""
    from scipy.stats import norm

    z = float(norm.ppf((1 + confidence) / 2))
    centre, spread = p + z * z / (2 * count), z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    below = 1 + z * z / count
    error = math.sqrt(p * (1 - p) / count)
    return Estimate(p, (centre - spread) / below, (centre + spread) / below, error).within(0.0, 1.0)


def grouped_share(above: Groups, below: Groups, confidence: float) -> Estimate:
    """Σ above / Σ below of terms in 0 … 1, which are alike within a group: as of fewer answers that are independent.

    Their number is that whose share would vary as much; fewer by what is not known of it, by Student's t, since it is
    measured on the groups themselves. Where nothing varies, it is that of the groups.
    Source: Kish 1965, Survey Sampling, section 8.2 (effective sample size); Korn & Graubard 1998, Survey Methodology
    24(2), 193-201 (with t); Dean & Pagano 2015, doi:10.1093/jssam/smv024 (in Wilson's interval)
    """
    from scipy.stats import norm, t

    p, groups = float(above.sum() / below.sum()), int((below > 0).sum())
    variance = float(np.square(_residuals(above, below)).sum())
    if variance == 0 or (np.isin(below, (0, 1)).all() and np.isin(above, (0, 1)).all()):
        return wilson(p, groups, confidence)  # independent: nothing has to be measured
    tail = (1 + confidence) / 2
    wider = float(t.ppf(tail, groups - 1) / norm.ppf(tail))
    return wilson(p, p * (1 - p) / (variance * groups / (groups - 1) * wider**2), confidence)


def share_difference(
    first: tuple[Groups, Groups], second: tuple[Groups, Groups], confidence: float, seed: int = 0
) -> Estimate:
    """The first share less the second one, of the same groups: from their intervals and how they go together.

    Source: Newcombe 1998, method 10, doi:10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I; Zou &
    Donner 2008, eq. 7, doi:10.1002/sim.3095 (with a correlation)
    """
    a, b = (grouped_share(*share, confidence) for share in (first, second))
    one, two = _residuals(*first), _residuals(*second)
    size = math.sqrt(float(np.square(one).sum() * np.square(two).sum()))
    together = float(np.clip((one * two).sum() / size, -1, 1)) if size > 0 else 0.0

    def side(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2 * together * x * y + y * y))

    d, error = a.value - b.value, float(np.sqrt(np.square(one - two).sum()))
    return Estimate(d, d - side(a.value - a.low, b.high - b.value), d + side(a.high - a.value, b.value - b.low), error)


def _residuals(above: Groups, below: Groups) -> Groups:
    """What each group adds to the error of the share."""
    total = below.sum()
    found: Array = (above - above.sum() / total * below) / total
    return found
