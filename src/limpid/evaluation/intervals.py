"""How far a number measured on a sample may be from the truth: studentised bootstrap over blocks.

Tokens that follow each other are alike, so tokens are not resampled but blocks of them: whole documents, or stretches
of a text so long that one hardly tells of the next. Every metric is a smooth function of the blocks' totals; its
standard error in each resample comes from its gradient. Sources: Efron & Tibshirani 1993, An Introduction to the
Bootstrap, section 12.5 (bootstrap-t); Carlstein 1986, doi:10.1214/aos/1176350057 (blocks that do not overlap); Götze &
Künsch 1996, doi:10.1214/aos/1069362303 (studentised, over blocks).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

Array = np.ndarray

RESAMPLES = 9999
ALIKE = 1e-9
"""Of the whole sample's standard error: a resample with less holds blocks of one value, up to rounding."""
AT_ONCE = 1 << 22
"""Numbers drawn at once."""


class Statistic(NamedTuple):
    """A smooth function of totals (..., total), and its gradient (..., total)."""

    value: Callable[[Array], Array]
    gradient: Callable[[Array], Array]


@dataclass(frozen=True)
class Estimate:
    """A measured number, and between which bounds the truth lies at the stated confidence."""

    value: float
    low: float
    high: float
    error: float  # standard error
    p: float | None = None  # of a value this far from 0 or farther, were the truth 0; for differences

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2

    def of(self, change: Callable[[float], float]) -> Estimate:
        """The estimate of an increasing function of the number: `exp` makes a loss a perplexity."""
        value, low, high = change(self.value), change(self.low), change(self.high)
        return Estimate(value, low, high, (high - low) / (self.high - self.low) * self.error if self.half else 0.0)

    def plus(self, number: float) -> Estimate:
        """The estimate of a sum with a number that is known."""
        return Estimate(self.value + number, self.low + number, self.high + number, self.error)

    def times(self, factor: float) -> Estimate:
        """The estimate of a multiple, which turns round where the factor is negative."""
        low, high = sorted((factor * self.low, factor * self.high))
        return Estimate(factor * self.value, low, high, abs(factor) * self.error, self.p)

    def within(self, low: float, high: float) -> Estimate:
        """The estimate with its bounds clipped to what is possible."""
        return Estimate(self.value, max(low, self.low), min(high, self.high), self.error, self.p)

    def as_dict(self) -> dict[str, float]:
        """As plain values, for JSON."""
        plain = {"value": self.value, "low": self.low, "high": self.high, "standard_error": self.error}
        return plain if self.p is None else {**plain, "p": self.p}


def _ratio(totals: Array) -> Array:
    return np.asarray(totals[..., 0] / totals[..., 1])


def _ratio_gradient(totals: Array) -> Array:
    below = totals[..., 1:2]
    return np.concatenate([1 / below, -totals[..., :1] / below**2], axis=-1)


def _difference(totals: Array) -> Array:
    return np.asarray(_ratio(totals[..., :2]) - _ratio(totals[..., 2:]))


def _difference_gradient(totals: Array) -> Array:
    return np.concatenate([_ratio_gradient(totals[..., :2]), -_ratio_gradient(totals[..., 2:])], axis=-1)


RATIO = Statistic(_ratio, _ratio_gradient)
"""Σ a / Σ b, as nats per token or bits per byte."""
DIFFERENCE = Statistic(_difference, _difference_gradient)
"""Σ a / Σ b - Σ c / Σ d: of two models on the same blocks."""


def estimate(
    blocks: Float[Array, "block total"],
    statistic: Statistic = RATIO,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    difference: bool = False,
    missed: float = 0.0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """The statistic of all blocks together, with its interval; `difference` adds the p-value of a truth of 0.

    `missed` is the share of the variance that comes from dependence between blocks, which resampling cannot see.
    Blocks of the same index hold the same text, so two models' totals side by side are compared in pairs.
    """
    blocks = np.asarray(blocks, np.float64)
    totals = blocks.sum(0)
    value = float(statistic.value(totals))
    error = float(_standard_error(totals[None], _moments(blocks).sum(0)[None], len(blocks), statistic)[0])
    if not error > 0:
        return Estimate(value, value, value, 0.0, (1.0 if value == 0 else 0.0) if difference else None)
    t = _studentised(blocks, statistic, value, np.random.default_rng(seed), resamples)
    error /= math.sqrt(1 - missed)
    tail = (1 - confidence) / 2
    above, below = np.quantile(t, [1 - tail, tail], method="higher")
    student = float(stdtrit(len(blocks) - 1, 1 - tail))  # where too many resamples hold one value alone to say
    above, below = (above if np.isfinite(above) else student), (below if np.isfinite(below) else -student)
    p = float((1 + np.sum(np.abs(t) >= abs(value / error))) / (1 + len(t))) if difference else None
    return Estimate(value, value - float(above) * error, value - float(below) * error, error, p)


def _studentised(
    blocks: Array, statistic: Statistic, value: float, rng: np.random.Generator, resamples: int
) -> Float[Array, " resample"]:
    """(statistic - value) / standard error, of resamples of the blocks; infinite where all drawn ones are alike."""
    count, moments = len(blocks), _moments(blocks)
    least = ALIKE * float(_standard_error(blocks.sum(0)[None], moments.sum(0)[None], count, statistic)[0])
    ratios = []
    for begin in range(0, resamples, max(1, AT_ONCE // count)):
        size = min(resamples - begin, max(1, AT_ONCE // count))
        times = rng.multinomial(count, np.full(count, 1 / count), size).astype(np.float64)  # each block is drawn
        totals = times @ blocks
        second = (times @ moments.reshape(count, -1)).reshape(size, *moments.shape[1:])
        with np.errstate(all="ignore"):
            error = _standard_error(totals, second, count, statistic)
            away = statistic.value(totals) - value
            t = np.where(error > least, away / error, np.copysign(np.inf, away))
        ratios.append(t[~np.isnan(t)])
    return np.concatenate(ratios)


def _moments(blocks: Array) -> Float[Array, "block total total"]:
    return np.asarray(blocks[:, :, None] * blocks[:, None, :])


def _standard_error(
    totals: Float[Array, "resample total"],
    moments: Float[Array, "resample total total"],
    count: int,
    statistic: Statistic,
) -> Float[Array, " resample"]:
    """By the gradient: √(n/(n-1) Σ (∇g · (block - mean block))²)."""
    slope = statistic.gradient(totals)
    square = np.einsum("ri,rij,rj->r", slope, moments, slope)
    mean = np.einsum("ri,ri->r", slope, totals) / count  # 0 for ratios
    return np.asarray(np.sqrt(np.maximum(square - count * mean**2, 0.0) * count / (count - 1)))
