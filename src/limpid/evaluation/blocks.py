"""Where a text is cut into blocks that hardly tell of each other: at the ends of documents, or at equal lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int64

Array = np.ndarray

MOST = 100
"""Blocks, at most: with more, intervals would narrow by 1% only, and dependence over long distances would be lost."""
FEWEST = 10
"""Blocks, at least: of fewer, a spread cannot be significant."""
SHORTEST = 64
"""Tokens of a block in a text, where that leaves twenty: correlations too weak to be seen reach about as far."""
NEGLECTED = 0.05
"""Share of the variance that dependence across blocks' borders may make up, by the estimate of it."""


@dataclass(frozen=True)
class Blocks:
    """The blocks' ends in bytes of text, ascending, the last one the end of the text."""

    ends: Int64[Array, " block"]
    unit: Literal["documents", "text"]  # what they are whole pieces of
    missed: float = 0.0  # share of the variance that blocks of this length leave out, estimated

    def __len__(self) -> int:
        return len(self.ends)


def blocks_of(
    ends: Int64[Array, " token"], documents: Int64[Array, " document"], deviations: Float[Array, " token"]
) -> Blocks | None:
    """Blocks of scored tokens, given where in the text tokens and documents end, and the metric less its mean.

    Whole documents where they make ten blocks of about equal weight; else equal lengths, wherever documents end.
    None for a text of fewer than twice ten tokens.
    """
    if len(ends) < 2 * FEWEST:
        return None
    return _of_documents(ends, documents, deviations) or _of_text(ends, documents, deviations)


def _of_documents(ends: Array, documents: Array, deviations: Array) -> Blocks | None:
    """Whole neighbouring documents of about equal weight together; None where that makes no ten blocks."""
    count = len(ends)
    before = np.searchsorted(ends, documents, side="right")  # tokens up to each document's end
    scored = np.diff(before, prepend=0) > 0
    documents, before = documents[scored], before[scored]
    of_each = np.diff(np.concatenate([[0.0], np.cumsum(deviations)])[before], prepend=0.0)
    length = block_length(of_each) if len(documents) > FEWEST else 1.0
    number = int(min(MOST, max(FEWEST, len(documents) / length)))
    shares = np.arange(1, number + 1) * count / number
    after = np.minimum(np.searchsorted(before, shares), len(documents) - 1)
    nearer = shares - before[np.maximum(after - 1, 0)] < before[after] - shares
    chosen = np.unique(np.append(np.maximum(after - nearer, 0), len(documents) - 1))
    sizes = np.diff(before[chosen], prepend=0).astype(np.float64)
    alike = count**2 / float(np.sum(sizes**2))  # how many blocks of equal weight they are worth
    if alike < 0.9 * FEWEST:
        return None
    return Blocks(documents[chosen], "documents", _missed(length, len(documents) / len(chosen)))


def _of_text(ends: Array, documents: Array, deviations: Array) -> Blocks:
    """Equal lengths, wherever documents end."""
    count, length = len(ends), block_length(deviations)
    most = min(MOST, max(2 * FEWEST, count // SHORTEST), count // 2)
    number = max(FEWEST, min(most, int(count / length)))
    last = np.arange(1, number + 1) * count // number - 1
    cut = ends[last]
    cut[-1] = max(documents[-1], cut[-1])
    return Blocks(np.unique(cut), "text", _missed(length, count / number))


def _missed(length: float, actual: float) -> float:
    return min(0.5, NEGLECTED * length / actual) if length > 1 else 0.0


def block_length(deviations: Float[Array, " token"]) -> float:
    """Tokens of a block such that dependence across its borders is at most 5% of the variance of a mean.

    Blocks of length b miss a share G/(b g) of it, with g = Σ R(k), G = Σ |k| R(k) over all lags k of the
    autocovariance R, both estimated as Politis & White 2004 do, section 3.2, doi:10.1081/ETC-120028836 (flat-top
    window, its width where correlations become insignificant).
    What is missed by blocks of another length is in proportion; intervals are widened by it.
    Departs  from their length, which makes the estimated variance as precise as possible and lets the share be: their
             intervals cover less than they state (benchmarks/intervals.py)
    """
    covariance = autocovariance(deviations)
    width = significant_lags(covariance, len(deviations))
    lags = np.arange(1, min(2 * width, len(covariance) - 1) + 1)
    window = np.minimum(1.0, 2 * (1 - lags / (2 * width))) if width else np.empty(0)
    total = covariance[0] + 2 * np.sum(window * covariance[lags])
    spread = 2 * np.sum(window * lags * covariance[lags])
    if total <= 0:  # so many negative correlations that the estimate fails
        return 1.0
    return max(1.0, abs(spread) / total / NEGLECTED)


def autocovariance(deviations: Float[Array, " token"]) -> Float[Array, " lag"]:
    """R(k) of a series less its mean, at lags up to √n + 10 log₁₀ n, by the definition with divisor n."""
    x = np.asarray(deviations, np.float64) - np.mean(deviations)
    most = min(len(x) - 1, math.ceil(math.sqrt(len(x)) + 10 * math.log10(len(x))))
    size = 1 << (2 * len(x) - 1).bit_length()
    spectrum = np.fft.rfft(x, size)
    return np.asarray(np.fft.irfft(np.abs(spectrum) ** 2, size)[: most + 1] / len(x))


def significant_lags(covariance: Float[Array, " lag"], count: int) -> int:
    """The last lag before max(5, √log₁₀ n) correlations in a row that lie within 2 √(log₁₀ n / n) of 0."""
    if covariance[0] <= 0:
        return 0
    small = np.abs(covariance[1:] / covariance[0]) < 2 * math.sqrt(math.log10(count) / count)
    run = max(5, math.ceil(math.sqrt(math.log10(count))))
    for lag in range(len(small) - run + 1):
        if small[lag : lag + run].all():
            return lag
    return int(np.flatnonzero(~small)[-1]) + 1 if (~small).any() else 0


def totals(
    ends: Int64[Array, " token"],
    sizes: Int64[Array, " token"],
    values: Float[Array, "token quantity"],
    blocks: Blocks,
) -> Float[Array, "block quantity"]:
    """Sums of the tokens' values per block; a token across a border counts on both sides by its bytes there."""
    running = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0, dtype=np.float64)])
    whole = np.searchsorted(ends, blocks.ends, side="right")
    cut = np.minimum(whole, len(ends) - 1)
    inside = np.clip(blocks.ends - (ends[cut] - sizes[cut]), 0, None) / np.maximum(sizes[cut], 1)
    share = np.where(whole < len(ends), inside, 0.0)
    up_to = running[whole] + share[:, None] * values[cut]
    return np.diff(up_to, axis=0, prepend=np.zeros((1, values.shape[1])))
