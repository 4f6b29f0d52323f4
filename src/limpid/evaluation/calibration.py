"""Whether a model is as often right as it says: reliability, calibration error, and how much of it is chance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from limpid.evaluation.blocks import Blocks
from limpid.evaluation.intervals import Estimate, estimate
from limpid.evaluation.scored_text import ScoredText

Array = np.ndarray

BINS = 15
"""Bins of equal mass; the number that papers on calibration mostly take."""
DRAWS = 4000
"""Calibrated models that the error is compared with."""


@dataclass(frozen=True)
class Bin:
    """Tokens whose likeliest token had about the same probability."""

    count: int
    confidence: float  # mean probability of the likeliest token
    accuracy: float  # share of them where it came
    spread: float  # standard deviation of accuracy - confidence, were the model calibrated
    entropy: float  # mean entropy of the predictions, nats
    loss: float  # mean loss, nats

    @property
    def gap(self) -> float:
        return self.accuracy - self.confidence


@dataclass(frozen=True)
class Calibration:
    """Of the likeliest token at every position.

    error     Σ share · |accuracy - confidence| over bins of equal mass (ECE, Guo et al. 2017, eq. 3, arXiv:1706.04599)
    chance    what the error of a calibrated model would be on average, with as many tokens: its hits less its
              probabilities do not correlate, whatever the text
    corrected the error less what chance adds to it; its interval reaches 0 unless chance alone would hardly make the
              error as large
    """

    bins: tuple[Bin, ...]
    error: float
    chance: float
    corrected: Estimate | None


def calibration(text: ScoredText, blocks: Blocks | None, confidence: float, seed: int) -> Calibration:
    """Bins, the calibration error and its interval."""
    scores = text.scores
    members = binned(scores.confidence)
    bins = tuple(_bin(scores, member) for member in members)
    shares = np.array([b.count for b in bins]) / text.count
    error = float(sum(shares * [abs(b.gap) for b in bins]))
    chance = float(sum(shares * [b.spread * math.sqrt(2 / math.pi) for b in bins]))
    if blocks is None:
        return Calibration(bins, error, chance, None)
    signed = np.zeros(text.count)
    for member, b in zip(members, bins, strict=True):
        signed[member] = math.copysign(1, b.gap) * (scores.hit[member].astype(np.float64) - scores.confidence[member])
    plain = estimate(
        text.totals(blocks, signed, np.ones(text.count)),
        confidence=confidence, seed=seed, missed=blocks.missed,
    )  # fmt: skip
    corrected = float(sum(shares * [unfolded_gap(abs(b.gap), b.spread) for b in bins]))
    by = corrected - error
    tail = (1 - confidence) / 2
    noise = np.abs(np.random.default_rng(seed).standard_normal((DRAWS, len(bins)))) @ (
        shares * [b.spread for b in bins]
    )
    low = 0.0 if error <= np.quantile(noise, 1 - tail) else plain.low + by
    on_device = Estimate(corrected, low, plain.high + by, plain.error)
    return Calibration(bins, error, chance, on_device.within(0.0, 1.0))


def binned(confidence: Float[Array, " token"]) -> list[Array]:
    """Places of the tokens in each bin: equal in number, ties together."""
    order = np.argsort(confidence, kind="stable")
    borders = np.arange(1, BINS) * len(order) // BINS
    edges = np.unique(confidence[order[borders]])
    number = np.searchsorted(edges, confidence[order], side="right")
    starts = np.flatnonzero(np.diff(number)) + 1
    return [part for part in np.split(order, starts) if len(part)]


def unfolded_gap(gap: float, spread: float) -> float:
    """The |δ| for which |gap| is what |δ + normal noise of this spread| is on average; 0 when noise alone does more.

    The mean of a folded normal: Leone, Nelson & Nottingham 1961, eq. 3, doi:10.1080/00401706.1961.10489974.
    """
    from scipy.optimize import brentq

    if gap <= spread * math.sqrt(2 / math.pi) or spread == 0:
        return 0.0 if spread else gap

    def excess(delta: float) -> float:
        z = delta / spread
        return spread * math.sqrt(2 / math.pi) * math.exp(-z * z / 2) + delta * math.erf(z / math.sqrt(2)) - gap

    return float(brentq(excess, 0.0, gap + spread))


def _bin(scores: Any, member: Array) -> Bin:
    p = scores.confidence[member].astype(np.float64)
    return Bin(
        len(member),
        float(p.mean()),
        float(scores.hit[member].mean(dtype=np.float64)),
        float(np.sqrt(np.maximum(p * (1 - p), 0).sum()) / len(member)),
        float(scores.entropy[member].mean(dtype=np.float64)),
        float(scores.loss[member].mean(dtype=np.float64)),
    )
