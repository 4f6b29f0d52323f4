"""Tokens to batches: which rows a step trains on is a function of (seed, step), nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int64, Integer, UInt64

from limpid.data.joined import Joined
from limpid.data.mixture import Mixture
from limpid.errors import DataError

Array = np.ndarray
ROUNDS = 6
"""Rounds of the Feistel network; four already pass as random (Luby & Rackoff 1988)."""


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through the model together, as the named arrays that the objective asks for."""

    arrays: Mapping[str, Array]  # tokens and targets, (batch, position); masks, rewards, …
    rows: tuple[int, ...] = ()  # where each row starts in the split, tokens
    measured: Mapping[str, float] = field(default_factory=dict)  # means over its rows, logged beside the loss

    def __getitem__(self, name: str) -> Array:
        try:
            return self.arrays[name]
        except KeyError:
            held = ", ".join(self.arrays)
            raise DataError(f"the batch holds {held}, but no {name!r}, which the objective asks for") from None

    @property
    def size(self) -> int:
        """Tokens that go through the model."""
        return int(self["tokens"].size)


@dataclass(frozen=True)
class Region:
    """Part of a split that rows are taken from."""

    start: int
    tokens: int
    weight: float = 1.0  # its share of the rows, against those of the others


class Batches:
    """The training batches of a run.

    Each epoch lays a grid of windows of context_length + 1 tokens over a region, at an offset of its own, and visits
    every window once, in an order of its own. Neighbours share one token: the last target is the next first input. Of
    several regions each has epochs of its own, and its share of the rows.
    """

    def __init__(
        self,
        tokens: Integer[Array, " token"] | Joined,
        context_length: int,
        batch_size: int,
        accumulation: int,
        seed: int,
        regions: Sequence[Region] = (),
    ) -> None:
        """`regions` is the whole split when left out."""
        self.tokens, self.context_length = tokens, context_length
        self.batch_size, self.accumulation = batch_size, accumulation
        regions = regions or (Region(0, len(tokens)),)
        self.mixture = Mixture([region.weight for region in regions])
        self.grids = [Grid(region, context_length, seed, number) for number, region in enumerate(regions)]
        self.windows = sum(grid.windows for grid in self.grids)

    def batch(self, step: int, state: object = None) -> tuple[MicroBatch, ...]:
        """The micro-batches of step `step`, from 1, whatever the state."""
        rows = self.batch_size * self.accumulation
        sources, numbers = self.mixture.rows((step - 1) * rows, rows)
        starts = np.empty_like(numbers)
        for source, grid in enumerate(self.grids):
            starts[sources == source] = grid.starts(numbers[sources == source])
        return tuple(_cut(self.tokens, part, self.context_length) for part in np.split(starts, self.accumulation))

    def epoch(self, step: int) -> float:
        """How often the split has been seen after step `step`, on average over its regions."""
        return step * self.batch_size * self.accumulation / self.windows


class Grid:
    """The windows of a region, epoch after epoch."""

    def __init__(self, region: Region, context_length: int, seed: int, number: int) -> None:
        self.region, self.context_length = region, context_length
        self.key = (seed,), ((number,) if number else ())  # around the epoch
        self.windows = max(1, (region.tokens - context_length) // context_length)
        self.offsets = region.tokens - self.windows * context_length  # how many places it can start at

    def starts(self, numbers: Int64[Array, " row"]) -> Int64[Array, " row"]:
        """Offsets of the windows that a run visits as this region's rows number `numbers`, from 0."""
        epochs, places = np.divmod(numbers, self.windows)
        starts = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            seed, number = self.key
            offset, *keys = np.random.SeedSequence((*seed, int(epoch), *number)).generate_state(ROUNDS + 1, np.uint64)
            here = epochs == epoch
            windows = permuted(places[here], self.windows, keys)
            starts[here] = self.region.start + int(offset) % self.offsets + windows * self.context_length
        return starts


def validation_batches(
    tokens: Integer[Array, " token"] | Joined, context_length: int, batch_size: int, count: int
) -> Iterator[MicroBatch]:
    """At most `count` windows spread evenly over a split, always the same, none with a target in common, in batches."""
    windows = (len(tokens) - 1) // context_length
    rows = min(windows, count)
    starts = np.arange(rows) * windows // max(1, rows) * context_length
    for first in range(0, rows, batch_size):
        yield _cut(tokens, starts[first : first + batch_size], context_length)


def shuffled(numbers: Int64[Array, " row"], size: int, seed: int) -> Int64[Array, " row"]:
    """Which of `size` things a run takes as number `numbers`, from 0: each once an epoch, in an order of its own."""
    epochs, places = np.divmod(numbers, size)
    found = np.empty_like(numbers)
    for epoch in np.unique(epochs):
        keys = np.random.SeedSequence((seed, int(epoch))).generate_state(ROUNDS, np.uint64)
        here = epochs == epoch
        found[here] = permuted(places[here], size, list(keys))
    return found


def permuted(places: Int64[Array, " row"], size: int, keys: list[np.uint64]) -> Int64[Array, " row"]:
    """Where a keyed permutation of range(size) sends `places`, without writing the permutation out.

    A Feistel network permutes the next power of four; places that leave the range walk on until they are back in it
    (Black & Rogaway 2002, section 3, cycle walking).
    """
    half = np.uint64(max(1, (max(1, size - 1).bit_length() + 1) // 2))
    found = places.astype(np.uint64)
    outside = np.ones(len(found), dtype=bool)
    while outside.any():
        found[outside] = _feistel(found[outside], half, keys)
        outside = found >= size
    return found.astype(np.int64)


def _feistel(x: UInt64[Array, " row"], half: np.uint64, keys: list[np.uint64]) -> UInt64[Array, " row"]:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = x >> half, x & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half) | right


def _mixed(x: UInt64[Array, " row"]) -> UInt64[Array, " row"]:
    """The finalizer of SplitMix64 (Steele, Lea & Flood 2014): every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _cut(tokens: Integer[Array, " token"] | Joined, starts: Int64[Array, " row"], context_length: int) -> MicroBatch:
    windows = tokens[starts[:, None] + np.arange(context_length + 1)].astype(np.int64)
    arrays = {"tokens": windows[:, :-1], "targets": windows[:, 1:]}
    return MicroBatch(arrays, tuple(int(start) for start in starts))
