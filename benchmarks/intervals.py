"""How often intervals hold the truth: texts drawn from processes whose truth is known.

python benchmarks/intervals.py [--texts 4000] [--only WORD]

Every row draws `--texts` texts, makes a 95% interval of each, and counts. Beside ours, for the first 600 of them: the
intervals that people make without thinking of dependence (1.96 standard deviations of tokens / √n), and blocks of the
length of Politis & White 2004 with percentiles. Then the same for calibration errors, of models whose likeliest token
comes with other odds than they say.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from limpid.evaluation.blocks import autocovariance, blocks_of, significant_lags, totals
from limpid.evaluation.calibration import binned, calibration
from limpid.evaluation.intervals import DIFFERENCE, RATIO, estimate
from limpid.evaluation.scored_text import ScoredText
from limpid.evaluation.token_scores import TokenScores
from limpid.evaluation.windows import Windows
from limpid.loaded import LoadedModel

BESIDE = 600
"""Texts of which other intervals are made too."""


@dataclass(frozen=True)
class Text:
    """Tokens with a value each, cut into documents."""

    values: np.ndarray  # (token, quantity): numerator, denominator (, numerator, denominator)
    documents: np.ndarray  # ends, in tokens


def autoregressive(phi: float, count: int, skew: bool = False, moving: float = 0.0) -> Callable:
    """x_t = φ x_{t-1} + e_t + θ e_{t-1}; skewed noise is exponential, as surprises are."""

    def draw(rng: np.random.Generator) -> Text:
        from scipy.signal import lfilter

        noise = rng.exponential(size=count + 500) - 1 if skew else rng.standard_normal(count + 500)
        x = lfilter([1.0, moving], [1.0, -phi], noise)[500:]
        return Text(np.stack([x + 2.0, np.ones(count)], 1), np.array([count]))

    return draw


def clusters(count: int, tokens: int, uneven: float, difficulty: float, neighbours: float = 0.0) -> Callable:
    """Documents of uneven length, each with a difficulty of its own, alike to its neighbour's."""

    def draw(rng: np.random.Generator) -> Text:
        lengths = np.maximum(3, rng.lognormal(math.log(tokens), uneven, count)).astype(int)
        own = np.empty(count)
        own[0] = rng.standard_normal()
        for i in range(1, count):
            own[i] = neighbours * own[i - 1] + math.sqrt(1 - neighbours**2) * rng.standard_normal()
        x = rng.exponential(size=lengths.sum()) + 1 + difficulty * np.repeat(own, lengths)
        return Text(np.stack([x, np.ones(len(x))], 1), np.cumsum(lengths))

    return draw


def bytes_per_token(count: int) -> Callable:
    """Bits per byte: longer tokens surprise more, and both follow a topic that changes slowly."""

    def draw(rng: np.random.Generator) -> Text:
        from scipy.signal import lfilter

        topic = lfilter([0.3], [1.0, -0.9], rng.standard_normal(count + 500))[500:]
        size = 1 + rng.poisson(3, count)
        nats = rng.exponential(np.exp(0.5 * topic)) * (0.5 + 0.5 * size / 4)
        return Text(np.stack([nats, size], 1), np.array([count]))

    return draw


def two_models(count: int, apart: float) -> Callable:
    """Two models' surprises at the same tokens, correlated at 0.9, the difference autoregressive."""

    def draw(rng: np.random.Generator) -> Text:
        from scipy.signal import lfilter

        base = rng.exponential(size=count)
        d = lfilter([0.3], [1.0, -0.6], rng.standard_normal(count + 500))[500:] + apart
        one = np.ones(count)
        return Text(np.stack([base + d, one, base, one], 1), np.array([count]))

    return draw


def hits(count: int, rate: float) -> Callable:
    """Accuracy: independent hits."""

    def draw(rng: np.random.Generator) -> Text:
        return Text(np.stack([rng.random(count) < rate, np.ones(count)], 1).astype(float), np.array([count]))

    return draw


CASES: dict[str, tuple[Callable, float]] = {
    "independent, 1,000 tokens": (autoregressive(0.0, 1000), 2.0),
    "independent and skewed, 200 tokens": (autoregressive(0.0, 200, skew=True), 2.0),
    "AR(1) 0.5, 500 tokens": (autoregressive(0.5, 500), 2.0),
    "AR(1) 0.5, 5,000 tokens": (autoregressive(0.5, 5000), 2.0),
    "AR(1) 0.7 and skewed, 1,000 tokens": (autoregressive(0.7, 1000, skew=True), 2.0),
    "AR(1) 0.9, 1,000 tokens": (autoregressive(0.9, 1000), 2.0),
    "AR(1) 0.9, 10,000 tokens": (autoregressive(0.9, 10_000), 2.0),
    "AR(1) 0.98, 10,000 tokens": (autoregressive(0.98, 10_000), 2.0),
    "ARMA 0.7, 0.5, 2,000 tokens": (autoregressive(0.7, 2000, moving=0.5), 2.0),
    "AR(1) -0.5, 1,000 tokens": (autoregressive(-0.5, 1000), 2.0),
    "40 documents, uneven": (clusters(40, 100, 0.5, 0.5), 2.0),
    "400 documents, very uneven": (clusters(400, 60, 1.0, 0.5), 2.0),
    "15 documents": (clusters(15, 300, 0.3, 0.5), 2.0),
    "400 documents, neighbours alike (0.5)": (clusters(400, 60, 0.5, 0.5, 0.5), 2.0),
    "bits per byte, 3,000 tokens": (bytes_per_token(3000), math.nan),
    "two models, 2,000 tokens": (two_models(2000, 0.0), 0.0),
    "two models, 0.1 apart, 2,000 tokens": (two_models(2000, 0.1), 0.1),
    "accuracy 0.3, 500 tokens": (hits(500, 0.3), 0.3),
    "accuracy 0.97, 2,000 tokens": (hits(2000, 0.97), 0.97),
}


def blocked(text: Text) -> tuple[np.ndarray, float]:
    """Totals per block, as `limpid evaluate` makes them, and the share of variance they miss."""
    values = text.values
    ratio = values[:, 0].sum() / values[:, 1].sum()
    ends = np.arange(1, len(values) + 1)
    deviations = values[:, 0] - ratio * values[:, 1]
    if values.shape[1] == 4:
        deviations = values[:, 0] - values[:, 2]
    blocks = blocks_of(ends, text.documents, deviations)
    assert blocks is not None
    return totals(ends, np.ones_like(ends), values, blocks), blocks.missed


def ours(text: Text, seed: int) -> tuple[float, float]:
    sums, missed = blocked(text)
    statistic = RATIO if sums.shape[1] == 2 else DIFFERENCE
    found = estimate(sums, statistic, seed=seed, missed=missed, resamples=1999)
    return found.low, found.high


def naive(text: Text, seed: int) -> tuple[float, float]:
    """Tokens as if they were independent."""
    values = text.values
    x = values[:, 0] - values[:, 2] if values.shape[1] == 4 else values[:, 0]
    y = np.ones(len(x)) if values.shape[1] == 4 else values[:, 1]
    ratio = x.sum() / y.sum()
    error = np.std(x - ratio * y) * math.sqrt(len(x)) / y.sum()
    return ratio - 1.96 * error, ratio + 1.96 * error


def politis_white(text: Text, seed: int) -> tuple[float, float]:
    """Circular blocks of the length of Politis & White 2004 (corrected 2009), percentiles."""
    values = text.values
    x = values[:, 0] - values[:, 2] if values.shape[1] == 4 else values[:, 0]
    y = np.ones(len(x)) if values.shape[1] == 4 else values[:, 1]
    n, e = len(x), x - x.sum() / y.sum() * y
    covariance = autocovariance(e)
    width = max(1, significant_lags(covariance, n))
    lags = np.arange(1, min(2 * width, len(covariance) - 1) + 1)
    window = np.minimum(1.0, 2 * (1 - lags / (2 * width)))
    g = covariance[0] + 2 * np.sum(window * covariance[lags])
    spread = 2 * np.sum(window * lags * covariance[lags])
    length = int(
        min(math.ceil(min(3 * math.sqrt(n), n / 3)), max(1, (2 * spread**2 / (4 / 3 * g**2)) ** (1 / 3) * n ** (1 / 3)))
    )
    number = -(-n // length)
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, n, (999, number))
    sums = [np.concatenate([[0], np.cumsum(np.concatenate([v, v[:length]]))]) for v in (x, y)]
    means = np.divide(*((s[starts + length] - s[starts]).sum(1) for s in sums))
    return tuple(np.quantile(means, [0.025, 0.975]))


def truth_of(name: str) -> float:
    draw, truth = CASES[name]
    if not math.isnan(truth):
        return truth
    rng = np.random.default_rng(10**6)  # by a very long text
    above, below = np.sum([draw(rng).values.sum(0) for _ in range(4000)], axis=0)
    return float(above / below)


def coverage(task: tuple[str, int]) -> tuple[str, ...]:
    """A row: how often each interval holds the truth, and how wide ours is beside Politis & White's."""
    name, texts = task
    draw, truth, rng = CASES[name][0], truth_of(name), np.random.default_rng(1)
    sides = (ours, politis_white, naive)
    counts, held, width = np.zeros(3), np.zeros(3), np.zeros((3, 2))
    for seed in range(texts):
        text = draw(rng)
        for i, side in enumerate(sides):
            if i == 0 or seed < BESIDE:
                low, high = side(text, seed)
                counts[i] += 1
                held[i] += low <= truth <= high
                width[i] += (high - low) * np.array([1, seed < BESIDE])
    mine, theirs, plain = held / counts
    return name, f"{mine:.1%}", f"{width[0, 1] / width[1, 1]:.2f}", f"{theirs:.1%}", f"{plain:.1%}"


CALIBRATED: dict[str, tuple[int, float, float]] = {  # tokens, power of the odds, how alike neighbours are
    "calibrated, 3,000 tokens": (3000, 1.0, 0.0),
    "calibrated, neighbours alike (0.9), 3,000 tokens": (3000, 1.0, 0.9),
    "odds to the power 0.9, 3,000 tokens": (3000, 0.9, 0.0),
    "odds to the power 0.9, 30,000 tokens": (30_000, 0.9, 0.0),
    "odds to the power 0.7, 1,000 tokens": (1000, 0.7, 0.0),
    "odds to the power 0.7, neighbours alike (0.9), 10,000 tokens": (10_000, 0.7, 0.9),
    "odds to the power 1.3, 3,000 tokens": (3000, 1.3, 0.0),
}


def judged(rng: np.random.Generator, count: int, power: float, alike: float) -> tuple[TokenScores, np.ndarray]:
    """What a model says of its likeliest token, whether that came, and the probability with which it did."""
    from scipy.signal import lfilter

    z = lfilter([math.sqrt(1 - alike**2)], [1.0, -alike], rng.standard_normal(count + 500))[500:]
    said = np.maximum(1 / (1 + np.exp(-1.5 * z)), 0.02)
    true = said**power / (said**power + (1 - said) ** power)
    hit = rng.random(count) < true
    surprise, zero = -np.log(np.where(hit, said, 1 - said)), np.zeros(count, np.float32)
    return TokenScores(surprise.astype(np.float32), zero, said.astype(np.float32), hit.astype(np.float32), zero), true


def calibration_coverage(task: tuple[str, int]) -> tuple[str, ...]:
    """A row: how often the interval of the calibration error holds the truth, its mean, the truth."""
    name, texts = task
    count, power, alike = CALIBRATED[name]
    large, true = judged(np.random.default_rng(10**6), 10**6, power, alike)
    bins = binned(large.confidence)
    truth = 0.0 if power == 1 else sum(len(b) * abs((true[b] - large.confidence[b]).mean()) for b in bins) / 10**6
    rng, held, values = np.random.default_rng(1), 0, []
    ends = np.arange(1, count + 1)
    nobody = LoadedModel("", None, None)  # only what was judged is looked at
    for seed in range(texts):
        own = judged(rng, count, power, alike)[0]
        measured = ScoredText(nobody, Windows(1, 1, "sliding", None), own, ends, np.ones_like(ends), ends[-1:], count)
        found = calibration(measured, measured.blocks(), 0.95, seed)
        assert found.corrected is not None
        held += found.corrected.low <= truth <= found.corrected.high
        values.append((found.error, found.corrected.value))
    plain, corrected = np.mean(values, axis=0)
    return name, f"{held / texts:.1%}", f"{truth:.2%}", f"{corrected:.2%}", f"{plain:.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    console = Console(width=140)
    share = f"share of 95% intervals that hold the truth, {options.texts:,} texts each"
    tables = (
        (coverage, CASES, share, ("text", "limpid", "relative width", "Politis & White", "tokens as independent")),
        (
            calibration_coverage,
            CALIBRATED,
            f"calibration error: {share}",
            ("model", "limpid", "truth", "mean", "as is"),
        ),
    )
    with multiprocessing.Pool() as pool:
        for row_of, cases, title, columns in tables:
            table = Table(title=title)
            for column in columns:
                table.add_column(column, justify="left" if column == columns[0] else "right")
            for row in pool.imap(row_of, [(name, options.texts) for name in cases if options.only in name]):
                table.add_row(*row)
            console.print(table)
    error = math.sqrt(0.95 * 0.05 / options.texts)
    console.print(f"one standard error of a share: {error:.2%}; widths are relative to Politis & White's")


if __name__ == "__main__":
    main()
