"""The batch of a step, derived a second time: which windows of the corpus it has, and that each target comes next.

`limpid.data.batches` is the engine's derivation. The two are written apart, so that a slip in either is found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal

import numpy as np
from jaxtyping import Int64, Integer

from limpid.config import TrainConfig
from limpid.data.joined import Joined
from limpid.maths.operation import Array
from limpid.quantities import NO_LABEL
from limpid.tracing.comparison import Expected, Range, compare
from limpid.tracing.record import Record
from limpid.tracing.verdict import Check

WORD = 2**64
ROUNDS = 6


def check_targets(record: Record) -> list[Check]:
    """A label is the token of the next position; that of a row's last one lies outside the batch.

    Rows of text are as long as the batch; rows of answers end where their last label is, and are padded.
    """
    if not {"batch/tokens", "batch/targets"} <= record.names:
        return []
    tokens, targets = (record.exact(f"batch/{name}") for name in ("tokens", "targets"))
    labelled = targets[:, :-1] != NO_LABEL
    expected = np.where(labelled, tokens[:, 1:], NO_LABEL)
    if record.config.tune is not None:
        last = targets.shape[1] - 1 - np.argmax(targets[:, ::-1] != NO_LABEL, axis=1)
        ends = np.arange(targets.shape[1] - 1) == last[:, None]
        expected = np.where(ends, targets[:, :-1], expected)
    return [equal("targets", targets[:, :-1], expected)]


def check_windows(
    record: Record, tokens: Integer[Array, " token"] | Joined, paths: Sequence[tuple[int, int]] = ()
) -> list[Check]:
    """The rows of a run on text against its training split: where they start, their tokens and targets.

    paths  where the tokens of each path with a weight begin and end
    """
    weights = record.config.data.weights
    bounds = list(zip(paths, weights, strict=False)) if weights else [((0, len(tokens)), 1.0)]
    starts = window_starts(record.config, bounds, int(record.meta["step"]))
    taken = np.array([row for micro in record.meta["micro_batches"] for row in micro["rows"]], np.int64)
    if taken.shape != starts.shape:
        return [equal("number of rows", np.asarray(taken.size), np.asarray(starts.size))]
    window = starts[:, None] + np.arange(record.config.model.context_length + 1)
    expected = tokens[window].astype(np.int64)
    return [
        equal("rows", taken, starts),
        equal("tokens", record.exact("batch/tokens"), expected[:, :-1]),
        equal("targets", record.exact("batch/targets"), expected[:, 1:]),
    ]


def equal(name: str, engine: Array, expected: Array) -> Check:
    """Ids must be these."""
    exact = expected.astype(np.float64)
    return compare(name, "given", engine, Expected(exact, np.zeros(exact.shape), Range(np.float64)))


def window_starts(
    config: TrainConfig, paths: Sequence[tuple[tuple[int, int], float]], step: int
) -> Int64[Array, " row"]:
    """Where each row of step `step` starts in a split of such parts: where each begins and ends, and its weight.

    An epoch cuts a part into windows, from an offset that it draws, and visits them in an order that it draws.
    """
    length, run = config.model.context_length, config.run
    rows = run.batch_size * run.gradient_accumulation_steps
    starts = []
    for which, number in _parts((step - 1) * rows, rows, [Decimal(str(weight)) for _, weight in paths]):
        (begin, end), _ = paths[which]
        windows = max(1, (end - begin - length) // length)
        epoch, place = divmod(number, windows)
        drawn = np.random.SeedSequence((run.seed, epoch, which) if which else (run.seed, epoch))
        offset, *keys = (int(word) for word in drawn.generate_state(1 + ROUNDS, np.uint64))
        starts.append(begin + offset % (end - begin - windows * length) + length * shuffled_place(place, windows, keys))
    return np.array(starts, np.int64)


def _parts(first: int, count: int, weights: Sequence[Decimal]) -> Iterator[tuple[int, int]]:
    """Which part each of some rows is of, and how many of its rows come before.

    The row number j of a part lies no sooner than after j of its shares, and no later than when j + 1 are full. The
    first part has its rows at the latest, the others take what is left, the one whose next row is due first.
    """
    scale = 10 ** max(0, *(-int(weight.as_tuple().exponent) for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    shares = [weight // math.gcd(*whole) for weight in whole]
    total = sum(shares)
    start = first - first % total  # here every share is whole
    had = [start // total * share for share in shares]
    due = [-(-(rows + 1) * total // share) for rows, share in zip(had, shares, strict=True)]
    for row in range(start, first + count):
        open_now = [part for part in range(1, len(had)) if had[part] * total < (row + 1) * shares[part]]
        part = 0 if due[0] == row + 1 else min(open_now, key=due.__getitem__)
        if row >= first:
            yield part, had[part]
        had[part] += 1
        due[part] = -(-(had[part] + 1) * total // shares[part])


def permutation_keys(drawn_from: tuple[int, ...]) -> list[int]:
    """What decides an order, as a function of seed, epoch, …"""
    return [int(word) for word in np.random.SeedSequence(drawn_from).generate_state(ROUNDS, np.uint64)]


def shuffled_place(place: int, windows: int, keys: list[int]) -> int:
    """The window, or record, at `place`: a Feistel network over two halves of equal width, repeated until it is one.

    Source: Black & Rogaway 2002, section 3, cycle walking.
    """
    width = 2
    while width * width < windows:
        width *= 2
    while True:
        left, right = divmod(place, width)
        for key in keys:
            left, right = right, left ^ _scrambled(right ^ key) % width
        place = left * width + right
        if place < windows:
            return place


def _scrambled(x: int) -> int:
    """SplitMix64's finalizer. Source: Steele, Lea & Flood 2014, figure 14, doi:10.1145/2714064.2660195."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB % WORD
    return x ^ x >> 31
