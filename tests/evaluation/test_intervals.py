"""Intervals hold the truth as often as they say; benchmarks/intervals.py does this for many more processes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter
from scipy.stats import t as student_t
from scipy.stats import ttest_1samp

from limpid.evaluation.blocks import MOST, Blocks, block_length, blocks_of, totals
from limpid.evaluation.intervals import DIFFERENCE, RATIO, estimate

TEXTS = 200
ERROR = math.sqrt(0.95 * 0.05 / TEXTS)
"""Standard error of a share of 95% among so many documents."""


def interval(values: np.ndarray, documents: np.ndarray, seed: int):
    ends = np.arange(1, len(values) + 1)
    blocks = blocks_of(ends, documents, values[:, 0] - values[:, 0].mean())
    sums = totals(ends, np.ones_like(ends), values, blocks)
    return estimate(sums, seed=seed, missed=blocks.missed, resamples=799)


@pytest.mark.parametrize("phi", [0.0, 0.6, 0.9])
def test_intervals_hold_the_mean_of_an_autoregressive_text(phi: float) -> None:
    rng = np.random.default_rng(7)
    held = 0
    for seed in range(TEXTS):
        x = lfilter([1.0], [1.0, -phi], rng.standard_normal(2500))[500:] + 3
        found = interval(np.stack([x, np.ones(2000)], 1), np.array([2000]), seed)
        held += found.low <= 3 <= found.high
    assert abs(held / TEXTS - 0.95) < 0.02 + 2 * ERROR


def test_intervals_hold_the_mean_over_documents_of_uneven_length() -> None:
    rng = np.random.default_rng(8)
    held = 0
    for seed in range(TEXTS):
        lengths = rng.integers(20, 120, 60)
        x = rng.exponential(size=lengths.sum()) + np.repeat(rng.standard_normal(60), lengths)
        found = interval(np.stack([x, np.ones(len(x))], 1), np.cumsum(lengths), seed)
        held += found.low <= 1 <= found.high
    assert abs(held / TEXTS - 0.95) < 0.02 + 2 * ERROR


def test_without_dependence_and_with_many_blocks_the_interval_is_students() -> None:
    x = np.random.default_rng(3).normal(2.0, 1.0, 100)
    found = estimate(np.stack([x, np.ones(100)], 1), difference=True)
    student = ttest_1samp(x, 0).confidence_interval(0.95)
    np.testing.assert_allclose([found.low, found.high], student, atol=0.03)
    assert found.error == pytest.approx(np.std(x, ddof=1) / 10)
    assert found.p == pytest.approx(1e-4)


def test_p_values_are_evenly_spread_when_there_is_no_difference() -> None:
    rng = np.random.default_rng(4)
    one = np.ones(60)
    ps = []
    for seed in range(TEXTS):
        base = rng.exponential(size=60)
        pairs = np.stack([base + 0.1 * rng.standard_normal(60), one, base, one], 1)
        ps.append(estimate(pairs, DIFFERENCE, seed=seed, difference=True, resamples=399).p)
    assert abs(np.mean(np.array(ps) < 0.05) - 0.05) < 0.02 + 2 * ERROR
    assert abs(np.mean(ps) - 0.5) < 0.06


def test_gradients_are_those_of_the_statistics() -> None:
    at = np.array([3.0, 7.0, 2.0, 5.0])
    for statistic, x in ((RATIO, at[:2]), (DIFFERENCE, at)):
        numeric = [(statistic.value(x + h) - statistic.value(x - h)) / 2e-6 for h in 1e-6 * np.eye(len(x))]
        np.testing.assert_allclose(statistic.gradient(x), numeric, rtol=1e-6)


def test_a_difference_that_every_block_shows_has_no_width() -> None:
    same = np.tile([2.0, 1.0, 1.0, 1.0], (20, 1))
    found = estimate(same, DIFFERENCE, difference=True)
    assert (found.low, found.value, found.high, found.p) == (1.0, 1.0, 1.0, 0.0)


def test_block_lengths_grow_with_dependence() -> None:
    """An AR(1) process misses 2φ/(1 - φ²) / b of its variance with blocks of length b."""
    rng = np.random.default_rng(5)
    for phi in (0.5, 0.9):
        x = lfilter([1.0], [1.0, -phi], rng.standard_normal(200_500))[500:]
        assert block_length(x) == pytest.approx(20 * 2 * phi / (1 - phi**2), rel=0.25)
    assert block_length(rng.standard_normal(100_000)) < 5


@given(st.lists(st.integers(1, 40), min_size=1, max_size=300), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_blocks_cover_the_text_and_end_with_documents_where_there_are_enough(lengths: list[int], seed: int) -> None:
    documents = np.cumsum(lengths)
    ends = np.arange(1, documents[-1] + 1)
    x = np.random.default_rng(seed).standard_normal(len(ends))
    blocks = blocks_of(ends, documents, x)
    if len(ends) < 20:
        assert blocks is None
        return
    assert blocks.ends[-1] == documents[-1]
    assert (np.diff(blocks.ends) > 0).all()
    assert len(blocks) <= MOST
    if blocks.unit == "documents":
        assert set(blocks.ends) <= set(documents)
    sums = totals(ends, np.ones_like(ends), np.stack([x, np.ones(len(x))], 1), blocks)
    np.testing.assert_allclose(sums.sum(0), [x.sum(), len(x)], atol=1e-9)


def test_a_token_across_a_border_counts_on_both_sides_by_its_bytes() -> None:
    found = totals(
        np.array([2, 6, 7]), np.array([2, 4, 1]), np.array([[1.0], [8.0], [3.0]]), Blocks(np.array([3, 7]), "text")
    )
    assert found[:, 0].tolist() == [3.0, 9.0]


def test_an_interval_of_nearly_constant_values_reaches_to_the_side_of_the_odd_one() -> None:
    values = np.array([4.0] * 11 + [2.5])
    found = estimate(np.stack([values, np.ones(12)], 1))
    student = student_t.interval(0.95, 11, loc=values.mean(), scale=values.std(ddof=1) / np.sqrt(12))
    assert found.low == pytest.approx(student[0])
    assert found.low < found.value < found.high
