"""Intervals of shares, against scipy, published numbers, and how often they hold the truth."""

import numpy as np
import pytest
from scipy.stats import binomtest

from limpid.evaluation.compared import Mean, Measure, mean_of
from limpid.evaluation.shares import grouped_share, share_difference, wilson


@pytest.mark.parametrize(("right", "count"), [(0, 12), (7, 12), (12, 12), (431, 1000)])
def test_a_share_of_independent_answers_is_wilsons(right: int, count: int) -> None:
    theirs = binomtest(right, count).proportion_ci(0.9, method="wilson")
    ours = wilson(right / count, count, 0.9)
    each = np.arange(count) < right
    grouped = grouped_share(each.astype(float), np.ones(count), 0.9)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert (grouped.low, grouped.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_answers_that_are_one_count_once() -> None:
    """Four answers to a prompt that all pass or all fail say no more than one of them, and that is to be found out."""
    right = (np.arange(30) < 11).astype(float)
    once, often = grouped_share(right, np.ones(30), 0.95), grouped_share(4 * right, np.full(30, 4.0), 0.95)
    assert once.low - 0.01 < often.low < once.low
    assert once.high < often.high < once.high + 0.02


def test_the_difference_of_independent_shares_is_newcombes() -> None:
    """56 of 70 less 48 of 80: 0.2, between 0.0524 and 0.3339; table II of the paper."""
    first, second = np.zeros((2, 150)), np.zeros((2, 150))
    first[:, :70] = (np.arange(70) < 56), np.ones(70)
    second[:, 70:] = (np.arange(80) < 48), np.ones(80)
    found = share_difference((first[0], first[1]), (second[0], second[1]), 0.95)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


def test_pairs_tell_more_than_two_samples_do(rng: np.random.Generator) -> None:
    hard = rng.random(60) < 0.5
    before, after = hard.astype(float), np.maximum(hard, np.arange(60) % 6 == 0).astype(float)
    one = np.ones(60)
    paired = share_difference((after, one), (before, one), 0.95)
    apart = share_difference((after, one), (rng.permutation(before), one), 0.95)
    assert apart.low < 0 < paired.low


def test_they_hold_the_truth_as_often_as_they_say(rng: np.random.Generator) -> None:
    """40 prompts of unlike hardness, 4 answers each before and after."""
    held = {"after": 0, "difference": 0}
    for _ in range(400):
        hard = rng.beta(1.2, 2.0, (40, 1))  # mean 0.375
        before, after = rng.random((40, 4)) < hard, rng.random((40, 4)) < 0.7 * hard + 0.3
        row = Measure(0.95, 0).compared("", "", mean_of(before * 1.0), mean_of(after * 1.0), share=True)
        for side, truth in (("after", 0.7 * 0.375 + 0.3), ("difference", 0.3 - 0.3 * 0.375)):
            found = getattr(row, side).estimate
            held[side] += found.low <= truth <= found.high
    assert min(held.values()) >= 0.93 * 400


def test_where_nothing_was_asked_nothing_counts() -> None:
    """Records without a term are neither groups nor zeros, and of fewer than ten there is no interval."""
    some = mean_of(np.where(np.arange(30)[:, None] % 3 == 0, np.nan, 1.0 + np.arange(30)[:, None]))
    left = Mean(some.above[some.below > 0], some.below[some.below > 0])
    measure = Measure(0.95, 0)
    assert measure.of("", "", some) == measure.of("", "", left)
    assert measure.of("", "", mean_of(np.ones((9, 4)))).estimate is None
    assert not mean_of(np.full((3, 2), np.nan)).known
