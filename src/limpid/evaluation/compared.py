"""One quantity before and after: means over records, whose answers are alike, in pairs of the same records."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from limpid.evaluation.blocks import FEWEST, MOST
from limpid.evaluation.intervals import DIFFERENCE, Estimate, estimate
from limpid.evaluation.metrics import Metric
from limpid.evaluation.shares import grouped_share, share_difference

Array = np.ndarray


@dataclass(frozen=True)
class Mean:
    """A mean over all terms of all records: of each record the sum of its terms, and how many it has."""

    above: Float64[Array, " record"]
    below: Float64[Array, " record"]

    @property
    def value(self) -> float:
        return float(self.above.sum() / self.below.sum())

    @property
    def known(self) -> bool:
        """Whether there is any term."""
        return bool(self.below.sum() > 0)


def mean_of(terms: Float64[Array, "record answer"]) -> Mean:
    """Of one or several numbers per record, some of which may be missing (not a number)."""
    there = np.isfinite(terms)
    return Mean(np.where(there, terms, 0.0).sum(1), there.sum(1).astype(np.float64))


@dataclass(frozen=True)
class Compared:
    """A line of the table; what was not measured of a side is None."""

    before: Metric | None
    after: Metric
    difference: Metric | None = None
    share: bool = False

    @property
    def name(self) -> str:
        return self.after.name

    @property
    def told(self) -> bool | None:
        """Whether the interval of the difference leaves 0 out; None where there is no interval."""
        if self.difference is None or self.difference.estimate is None:
            return None
        return not self.difference.estimate.low <= 0 <= self.difference.estimate.high

    def as_dict(self) -> dict[str, object]:
        """As plain values, for JSON."""
        sides = {"before": self.before, "after": self.after, "difference": self.difference}
        return {
            "name": self.name,
            **{side: None if metric is None else metric.as_dict() for side, metric in sides.items()},
            "told": self.told,
        }


@dataclass(frozen=True)
class Measure:
    """How means are compared: with which confidence, and what resampling draws from."""

    confidence: float
    seed: int

    def compared(
        self,
        name: str,
        unit: str,
        before: Mean | float | None,
        after: Mean,
        *,
        share: bool = False,
        least: float = -math.inf,
    ) -> Compared:
        """Both sides, and how much more the second one is, in pairs. `share` is for terms in 0 … 1.

        before  may be a number that is known without measuring, or nothing
        """
        found = self.of(name, unit, after, share=share, least=least)
        if before is None:
            return Compared(None, found, share=share)
        if isinstance(before, float):
            known = Metric(name, unit, before, Estimate(before, before, before, 0.0))
            between = found.estimate and found.estimate.plus(-before)
            return Compared(known, found, Metric(name, unit, after.value - before, between), share)
        between = self._between(after, before, share)
        value = after.value - before.value
        first = self.of(name, unit, before, share=share, least=least)
        return Compared(first, found, Metric(name, unit, value, between), share)

    def of(self, name: str, unit: str, mean: Mean, *, share: bool = False, least: float = -math.inf) -> Metric:
        """One side alone."""
        if _records(mean) < FEWEST:
            return Metric(name, unit, mean.value, None)
        if share:
            return Metric(name, unit, mean.value, grouped_share(mean.above, mean.below, self.confidence))
        interval = estimate(_blocks(mean), confidence=self.confidence, seed=self.seed)
        return Metric(name, unit, mean.value, interval.within(least, math.inf))

    def _between(self, after: Mean, before: Mean, share: bool) -> Estimate | None:
        if min(_records(after), _records(before)) < FEWEST:
            return None
        if share:
            return share_difference((after.above, after.below), (before.above, before.below), self.confidence)
        return estimate(_blocks(after, before), DIFFERENCE, confidence=self.confidence, seed=self.seed, difference=True)


def changed(row: Compared, name: str, unit: str, change: Callable[[float], float]) -> Compared:
    """Both sides as an increasing function of them, whose difference is told by the row itself."""

    def other(metric: Metric | None) -> Metric | None:
        if metric is None:
            return None
        return Metric(name, unit, change(metric.value), metric.estimate and metric.estimate.of(change))

    after = other(row.after)
    assert after is not None
    return Compared(other(row.before), after)


def _records(mean: Mean) -> int:
    return int((mean.below > 0).sum())


def _blocks(*means: Mean) -> Float64[Array, "block total"]:
    """Totals side by side of neighbouring records together, at most `MOST` of them; records without a term left out."""
    totals = np.stack([part for mean in means for part in (mean.above, mean.below)], 1)
    totals = totals[(totals[:, 1::2] > 0).any(1)]
    count = min(len(totals), MOST)
    return np.add.reduceat(totals, np.arange(count) * len(totals) // count)
