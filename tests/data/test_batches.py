"""Batches: a function of (seed, step), every window of an epoch once, targets one token ahead."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpid.data.batches import Batches, Region, permuted, validation_batches
from limpid.data.mixture import Mixture
from limpid.errors import ConfigError

CONTEXT = 7


def batches(length: int = 503, *, batch_size: int = 3, accumulation: int = 2, seed: int = 11) -> Batches:
    return Batches(np.arange(length, dtype=np.uint16), CONTEXT, batch_size, accumulation, seed)


def rows(source: Batches, steps: range) -> list[int]:
    return [row for step in steps for micro in source.batch(step) for row in micro.rows]


def test_a_batch_depends_on_nothing_but_seed_and_step() -> None:
    forwards, backwards = batches(), batches()
    there = {step: forwards.batch(step) for step in range(1, 40)}
    for step in reversed(range(1, 40)):
        for one, other in zip(there[step], backwards.batch(step), strict=True):
            assert np.array_equal(one["tokens"], other["tokens"])
            assert np.array_equal(one["targets"], other["targets"])
            assert one.rows == other.rows


def test_another_seed_gives_another_order() -> None:
    assert rows(batches(seed=11), range(1, 9)) != rows(batches(seed=12), range(1, 9))


def test_micro_batches_have_their_sizes_and_64_bit_ids() -> None:
    parts = batches().batch(5)
    assert len(parts) == 2
    for micro in parts:
        assert micro["tokens"].shape == micro["targets"].shape == (3, CONTEXT)
        assert micro["tokens"].dtype == micro["targets"].dtype == np.int64
        assert len(micro.rows) == 3


def test_targets_are_the_tokens_after_the_inputs_and_rows_say_where() -> None:
    for micro in batches().batch(4):
        assert np.array_equal(micro["targets"], micro["tokens"] + 1)  # the tokens count up
        assert micro["tokens"][:, 0].tolist() == list(micro.rows)


@given(
    length=st.integers(CONTEXT + 1, 400),
    batch_size=st.integers(1, 5),
    accumulation=st.integers(1, 3),
    seed=st.integers(0, 2**70),
)
def test_every_window_of_an_epoch_appears_exactly_once(
    length: int, batch_size: int, accumulation: int, seed: int
) -> None:
    source = batches(length, batch_size=batch_size, accumulation=accumulation, seed=seed)
    assert length - source.windows * CONTEXT <= 2 * CONTEXT  # what does not fit waits for another epoch
    steps = -(-3 * source.windows // (batch_size * accumulation))
    visited = rows(source, range(1, steps + 1))
    for epoch in range(3):
        grid = sorted(visited[epoch * source.windows : (epoch + 1) * source.windows])
        assert grid == list(range(grid[0], grid[0] + source.windows * CONTEXT, CONTEXT))
        assert grid[0] >= 0
        assert grid[-1] + CONTEXT + 1 <= length


def test_epochs_differ_in_order_and_offset() -> None:
    source = batches(batch_size=1, accumulation=1)
    epochs = [rows(source, range(1 + n * source.windows, 1 + (n + 1) * source.windows)) for n in range(6)]
    assert len({tuple(epoch) for epoch in epochs}) == 6
    assert len({min(epoch) for epoch in epochs}) > 2


def test_every_token_is_a_target_sooner_or_later() -> None:
    source = batches(37, batch_size=1, accumulation=1)
    targets = {
        int(target) for step in range(1, 400) for micro in source.batch(step) for target in micro["targets"].flat
    }
    assert targets == set(range(1, 37))


def test_a_split_of_one_row_is_enough() -> None:
    micro = batches(CONTEXT + 1, batch_size=2, accumulation=1).batch(9)[0]
    assert micro["tokens"].tolist() == [list(range(CONTEXT))] * 2


def test_epoch_counts_the_windows_seen() -> None:
    source = batches()
    assert source.windows == 70
    assert source.epoch(35) == pytest.approx(35 * 6 / 70)


WEIGHTS = st.lists(st.sampled_from([0.1, 0.2, 0.3, 1.0, 2.5, 0.07, 7.0]), min_size=1, max_size=7)


@given(weights=WEIGHTS, first=st.sampled_from([0, 1, 999, 10**12]), count=st.sampled_from([1, 40, 90]))
def test_rows_are_shared_out_without_drift(weights: list[float], first: int, count: int) -> None:
    """After however many rows, each share is less than one row away from its part of all."""
    sources, own = Mixture(weights).rows(first, count)
    rows = np.arange(first, first + count)
    for source, weight in enumerate(weights):
        here = np.flatnonzero(sources == source)
        assert np.array_equal(own[here], own[here[:1]] + np.arange(len(here)))
        share = Fraction(str(weight)) / sum(Fraction(str(one)) for one in weights)
        for row, before in zip(rows[here].tolist(), own[here].tolist(), strict=True):
            assert abs(before - row * share) < 1
            assert abs(before + 1 - (row + 1) * share) < 1


@given(weights=WEIGHTS)
def test_no_source_waits_a_row_too_long(weights: list[float]) -> None:
    sources, _ = Mixture(weights).rows(0, 500)
    had = np.cumsum(sources[:, None] == np.arange(len(weights)), axis=0)
    whole = np.array([int(Fraction(str(weight)) * 100) for weight in weights])
    due = np.arange(1, 501)[:, None] * whole  # in units of which a row has the sum
    assert (np.abs(had * whole.sum() - due) < whole.sum()).all()


@given(weights=WEIGHTS, cuts=st.lists(st.integers(0, 300), max_size=4))
def test_a_row_is_dealt_alike_whatever_was_asked_for_before(weights: list[float], cuts: list[int]) -> None:
    whole, mixture = Mixture(weights).rows(0, 400), Mixture(weights)
    for cut in cuts:
        for ours, theirs in zip(mixture.rows(cut, 60), whole, strict=True):
            assert np.array_equal(ours, theirs[cut : cut + 60])


def test_two_sources_are_dealt_as_they_always_were() -> None:
    numbers = np.arange(500)
    sources, own = Mixture([0.3, 0.7]).rows(0, 500)
    assert np.array_equal(sources == 0, (numbers + 1) * 3 // 10 > numbers * 3 // 10)
    assert np.array_equal(own[sources == 0], numbers[sources == 0] * 3 // 10)


@pytest.mark.parametrize("processes", [2, 3, 6])
def test_another_number_of_processes_reads_the_same_rows_of_each_step(processes: int) -> None:
    regions = [Region(0, 150, 0.5), Region(150, 250, 0.2), Region(400, 103, 0.3)]
    tokens = np.arange(503, dtype=np.uint16)
    alone, shared = (
        Batches(tokens, CONTEXT, 6, 1, 3, regions),
        Batches(tokens, CONTEXT, 6 // processes, processes, 3, regions),
    )
    for step in (1, 2, 50):
        assert rows(alone, range(step, step + 1)) == rows(shared, range(step, step + 1))
        assert len(shared.batch(step)) == processes


def test_weights_of_too_many_digits_are_refused() -> None:
    with pytest.raises(ConfigError, match="too many digits"):
        Mixture([1e-300, 1.0])


def test_regions_have_rows_of_their_own_and_epochs_of_their_own() -> None:
    regions = [Region(0, 100, 0.5), Region(100, 300, 0.2), Region(400, 103, 0.3)]
    source = Batches(np.arange(503, dtype=np.uint16), CONTEXT, 10, 1, 11, regions)
    for step in range(1, 9):
        taken = source.batch(step)[0].rows
        inside = [
            sum(region.start <= row < region.start + region.tokens - CONTEXT for row in taken) for region in regions
        ]
        assert inside == [5, 2, 3]
    small = [row for row in rows(source, range(1, 14)) if row < 100]
    assert sorted(small[:13]) == list(range(min(small[:13]), 100 - CONTEXT, CONTEXT))
    whole = Batches(source.tokens, CONTEXT, 10, 1, 11, [Region(0, 503)])
    assert rows(whole, range(1, 20)) == rows(Batches(source.tokens, CONTEXT, 10, 1, 11), range(1, 20))


@given(size=st.integers(1, 3000), keys=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=6))
def test_the_permutation_is_one(size: int, keys: list[int]) -> None:
    images = permuted(np.arange(size), size, [np.uint64(key) for key in keys])
    assert sorted(images.tolist()) == list(range(size))


def test_the_permutation_needs_no_memory_of_its_size() -> None:
    size = 10**15 + 37
    keys = list(np.random.SeedSequence(3).generate_state(6, np.uint64))
    images = permuted(np.array([0, 1, 2, size - 1]), size, keys)
    assert len(set(images.tolist())) == 4
    assert images.max() < size


def test_the_permutation_mixes() -> None:
    keys = list(np.random.SeedSequence(5).generate_state(6, np.uint64))
    images = permuted(np.arange(10_007), 10_007, keys)
    assert abs(np.corrcoef(np.arange(10_007), images)[0, 1]) < 0.05
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 0.05


def test_validation_windows_are_fixed_and_share_no_target() -> None:
    tokens = np.arange(131, dtype=np.uint32)
    found = list(validation_batches(tokens, CONTEXT, 5, 15))
    again = list(validation_batches(tokens, CONTEXT, 5, 15))
    assert [micro.rows for micro in found] == [micro.rows for micro in again]
    targets = [int(target) for micro in found for target in micro["targets"].flat]
    assert len(targets) == len(set(targets)) == 15 * CONTEXT
    assert max(targets) > 110  # spread over the whole split


def test_the_last_validation_batch_may_be_shorter() -> None:
    found = list(validation_batches(np.arange(7 * CONTEXT + 3), CONTEXT, 5, 20))
    assert [len(micro.rows) for micro in found] == [5, 2]
    assert [row for micro in found for row in micro.rows] == [n * CONTEXT for n in range(7)]
