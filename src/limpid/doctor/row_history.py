"""The rows that were served so far: hashes, when they came last, histograms of their tokens."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque

import numpy as np
import torch
from torch import Tensor

from limpid.doctor.borders import Border
from limpid.doctor.loaders import rows_of_loaders

BINS = 256
C_LN_C = np.concatenate([[0.0], np.arange(1, 4096) * np.log(np.arange(1, 4096))])
"""Of each count that a short row can have: every step asks for them."""
OFTEN = 8
"""Times that each pair of tokens must be there, on average, for its frequency to be known."""
MOST_ROWS = 1 << 16
"""Different rows that are remembered, at about 210 bytes each: of more, one in 2, 4, 8, … by their hashes."""


class RowHistory:
    """What is known of the rows of a run; `arrays`, `hashes` and `counts` are those of the step under way.

    Memory is bounded by adaptive sampling (Flajolet 1990, "On adaptive sampling"): which rows are remembered depends on
    the rows alone, so that how soon these come back says how soon all do.
    """

    def __init__(self) -> None:
        self.weights = np.random.Generator(np.random.PCG64(7)).integers(1, 2**62, 4096, dtype=np.int64)
        self.last: dict[int, int] = {}  # row hash -> when it was served last, counted in rows
        self.one_in = 1  # of so many rows is in `last` and `place`
        self.count = 0  # rows served
        self.tokens, self.largest = 0, 0
        self.batches: deque[int] = deque(maxlen=64)  # one hash each, whatever the order of the rows
        self.orders: deque[int] = deque(maxlen=8)  # of the last of them, in their order
        self.gaps: deque[int] = deque(maxlen=4096)  # rows served between two times of the same
        self.epochs: deque[float] = deque(maxlen=4096)  # the same, as a share of all rows that come back
        self.returns: Counter[int] = Counter()  # rows served again, by their length: a run may go on to longer ones
        self.returning: Counter[int] = Counter()  # and how many different ones they are
        self.place: dict[
            int, tuple[int, bool]
        ] = {}  # row hash -> returns before it was served last, whether it was one
        self.histograms: deque[np.ndarray] = deque(maxlen=64)  # of whole steps, one of a batch that is served on end
        self.taken = 0  # histograms, all that there were
        self.moments: deque[np.ndarray | None] = deque(maxlen=64)  # of the measured numbers of these steps, if any
        self.short: int | None = None  # length of rows of which nearly all that there can be have been served
        self.new_rows = True  # whether this step's rows were all new
        self.same_tensors = 0  # steps in a row that were given the very tensors of the step before
        self._given: list[Tensor] = []
        # of this step
        self.arrays: list[np.ndarray] = []  # (row, position) each
        self.hashes: list[int] = []
        self.counts = np.zeros((0, BINS), dtype=np.int64)  # (row, bin) tokens modulo 256
        self.known_before = 0  # different rows served before it
        self.counted = False  # whether there is a histogram of it, and no batch was served on end
        self._last: bytes | None = None  # tokens or labels of the step before
        self.measured = False  # whether its rows are of measured numbers, not of tokens
        self.batch = 0  # the most rows of any step
        # what single rules remember
        self.numbered, self.widths = False, set[int]()
        self.loaders: set[int] | None = None  # rows of their data sets, once looked for
        self.entropies: deque[float] = deque(maxlen=1024)
        self.odd_steps: deque[tuple[int, int]] = deque(maxlen=8)  # odd rows and rows of recent steps
        self.odd_before = 0
        self.border: int | None = None  # step of the last border
        self.suspected: tuple[int, int, Border] | None = None  # step and histogram at which one was, what was seen
        self.types: set[int] = set()
        self.only_class: deque[int | None] = deque(maxlen=64)  # of steps whose rows, eight or more, all have one

    def take(
        self,
        given: list[Tensor],
        classes: list[Tensor],
        numbers: list[int] | None = None,
        measured: list[Tensor] | None = None,
    ) -> None:
        """A step's token ids (row, position), and which rows of the data they are, or what stands with them in a row.

        Without token ids, its rows of measured numbers (row, …), and their class labels. Two rows of the data that read
        the same are two.
        """
        self.arrays, self.hashes = [np.asarray(t.detach().cpu(), dtype=np.int64) for t in given], []
        self.counted, self.measured = bool(given or classes), not given
        if given:
            self._take_rows(given, numbers or [])
            self.counts = np.concatenate([histograms(ids) for ids in self.arrays])
        elif measured:
            self.arrays = [_bits(rows) for rows in measured]
            self._take_rows(measured, [])
            self.arrays = []
        if classes and not given:
            self.counts = histograms(np.asarray(torch.cat(classes), dtype=np.int64)[None])
        if classes:
            labels = torch.cat(classes)
            alone = len(labels) >= 8 and bool((labels == labels[0]).all())
            self.only_class.append(int(labels[0]) if alone else None)
        self.counted &= not self._is_served_again(given or classes)
        if self.counted:
            self.taken += 1
            self.histograms.append(self.counts.sum(0) / max(1, self.counts.sum()))
            self.moments.append(_moments(measured) if measured and not given else None)

    def _is_served_again(self, tokens: list[Tensor]) -> bool:
        """Whether these are the tokens or labels of the step before, in their order, and not all the same."""
        values = [np.asarray(t.detach().cpu(), dtype=np.int64) for t in tokens]
        now = b"".join(v.tobytes() for v in values)
        before, self._last = self._last, now
        return now == before and any(v.min() != v.max() for v in values if v.size)

    def _take_rows(self, given: list[Tensor], numbers: list[int]) -> None:
        length = max(ids.shape[1] for ids in self.arrays)
        if self.short is not None and self.short != length:  # on from rows that were all that there can be
            self.count, self.short = 0, None
            for kept in (self.last, self.place, self.gaps, self.epochs, self.returns, self.returning):
                kept.clear()
        same = len(given) == len(self._given) and all(a is b for a, b in zip(given, self._given, strict=True))
        self.same_tensors, self._given = self.same_tensors + 1 if same else 0, given
        self.hashes = [h for ids in self.arrays for h in self._hashes(ids)]
        self.numbered |= bool(numbers)
        self.widths |= {ids.shape[1] for ids in self.arrays}
        if numbers:
            self.hashes = [hash(row) for row in zip(self.hashes, numbers, strict=True)]
        self.known_before = self.distinct
        self.new_rows = not any(h in self.last for h in self.hashes)
        lengths = [ids.shape[1] for ids in self.arrays for _ in ids]
        for offset, (h, length) in enumerate(zip(self.hashes, lengths, strict=True)):
            if not self._is_remembered(h):
                continue
            if h in self.last:
                self.gaps.append(self.count + offset - self.last[h])
                since, again = self.place[h]
                self.returning[length] += not again
                self.epochs.append((self.returns[length] - since + 1) / self.returning[length])
                self.returns[length] += 1
            self.place[h] = self.returns[length], h in self.last
            self.last[h] = self.count + offset
        self.count += len(self.hashes)
        self.batch = max(self.batch, len(self.hashes))
        while len(self.last) > MOST_ROWS:
            self._remember_half()
        self.batches.append(hash(tuple(sorted(self.hashes))))
        self.orders.append(hash(tuple(self.hashes)))
        self.largest = max(self.largest, max(int(ids.max()) for ids in self.arrays))
        self.tokens += sum(ids.size for ids in self.arrays)
        self.short = length if self._is_exhausted() else None

    @property
    def distinct(self) -> int:
        """Different rows served so far; where not all are remembered an estimate, off by one in √MOST_ROWS."""
        return len(self.last) * self.one_in

    def known(self, rows: Tensor) -> int | None:
        """How many of these rows of tokens (row, position), or of measured numbers, have been served and remembered.

        None where that cannot be seen: rows have numbers of their own, or were never of this length.
        """
        array = _bits(rows) if rows.is_floating_point() else np.asarray(rows.detach().cpu(), dtype=np.int64)
        if self.numbered or array.shape[1] not in self.widths:
            return None
        return sum(h in self.last for h in self._hashes(array))

    def _is_exhausted(self) -> bool:
        """Whether rows are so short that a quarter of all that these tokens can spell, or more, has been served."""
        if self.measured or not self.arrays:
            return False
        few = math.log(4 * max(1, self.distinct))
        return not any(_spells_more(ids, few) for ids in self.arrays) and max(map(spelled, self.arrays)) < few

    def _is_remembered(self, row: int) -> bool:
        return (row * 0x9E3779B97F4A7C15 >> 32) % self.one_in == 0

    def _remember_half(self) -> None:
        """Forget every other row, and how soon rows came back, which is learned anew of those that are left."""
        self.one_in *= 2
        self.last = {row: at for row, at in self.last.items() if self._is_remembered(row)}
        self.place = dict.fromkeys(self.last, (0, False))
        for kept in (self.gaps, self.epochs, self.returns, self.returning):
            kept.clear()

    def _hashes(self, ids: np.ndarray) -> list[int]:
        """64-bit hash of each row."""
        repeat = -(-ids.shape[1] // len(self.weights))
        weights = np.tile(self.weights, repeat)[: ids.shape[1]]
        with np.errstate(over="ignore"):
            mixed = (ids + 1) * weights
            mixed ^= mixed >> 29
            return [int(h) for h in (mixed * np.int64(0x2545F4914F6CDD1D)).sum(1) ^ ids.shape[1]]

    @property
    def period(self) -> int | None:
        """After how many steps the very same batches come again, if that has happened three times running."""
        batches = list(self.batches)
        for period in range(2, len(batches) // 3 + 1):
            if batches[-period:] == batches[-2 * period : -period] == batches[-3 * period : -2 * period]:
                return period
        return None

    def is_a_data_set(self, rows: int) -> bool:
        """Whether a loader of this process has so many rows and no more; asked where rows seem too few."""
        if self.loaders is None:
            self.loaders = rows_of_loaders()
        return rows in self.loaders

    @property
    def echoes(self) -> int | None:
        """How often each batch is served on end, where all are as often and none comes again later; None otherwise."""
        runs = [(batch, len(list(same))) for batch, same in itertools.groupby(self.batches)]
        whole = runs[1:-1] if len(self.batches) == self.batches.maxlen else runs[:-1]  # the first one may be cut off
        times = {length for _, length in whole}
        once = len({batch for batch, _ in runs}) == len(runs)
        alike = once and len(whole) > 2 and len(times) == 1 and min(times) > 1
        return times.pop() if alike and runs[-1][1] <= min(times) else None

    @property
    def row_entropies(self) -> np.ndarray:
        """Of the tokens of each row of this step, nats: ln n - Σ c ln c / n of n tokens."""
        total = np.maximum(self.counts.sum(1), 1)
        if self.counts.max() >= len(C_LN_C):
            return entropy(self.counts / total[:, None])
        found: np.ndarray = np.log(total) - C_LN_C[self.counts].sum(1) / total
        return found

    @property
    def unigram_entropy(self) -> float:
        """Of the tokens of the last steps together, nats."""
        return float(entropy(np.mean(self.histograms, axis=0)))


def _bits(rows: Tensor) -> np.ndarray:
    """Up to 512 numbers of each row, as the integers that their bits are, (row, number)."""
    return _numbers(rows).numpy().view(np.int32).astype(np.int64)


def _numbers(rows: Tensor) -> Tensor:
    """Up to 512 numbers of each row, (row, number)."""
    flat = rows.detach().reshape(len(rows), -1)
    return flat[:, :: max(1, -(-flat.shape[1] // 512))].float().cpu().contiguous()


def _moments(measured: list[Tensor]) -> np.ndarray | None:
    """Mean and mean square over rows of each number, (2 numbers,); None where rows differ in length."""
    flat = [_numbers(rows) for rows in measured]
    if len({rows.shape[1] for rows in flat}) > 1:
        return None
    rows = torch.cat(flat)
    found: np.ndarray = torch.cat([rows.mean(0), rows.square().mean(0)]).numpy().astype(np.float64)
    return found


def spelled(ids: np.ndarray) -> float:
    """The logarithm of how many rows these tokens can spell, nats.

    Where few tokens are seen often enough to know which follows which, that of a Markov chain's typical rows: Shannon
    1948, theorem 3.
    """
    tokens, codes = np.unique(ids, return_inverse=True)
    codes, count = codes.reshape(ids.shape), len(tokens)
    free = ids.shape[1] * math.log(count)
    if ids.shape[1] < 2 or OFTEN * count**2 > ids[:, 1:].size:
        return free
    pairs = np.bincount((count * codes[:, :-1] + codes[:, 1:]).ravel(), minlength=count**2) / ids[:, 1:].size
    first = pairs.reshape(count, count).sum(1)
    return float(entropy(first) + (ids.shape[1] - 1) * (entropy(pairs) - entropy(first)))


def _spells_more(ids: np.ndarray, few: float) -> bool:
    """Whether the tokens of one row alone say that `spelled` is above `few`; else nobody knows yet."""
    count = len(set(ids[0].tolist()))
    return OFTEN * count**2 > ids[:, 1:].size and ids.shape[1] * math.log(count) > few


def histograms(ids: np.ndarray) -> np.ndarray:
    """How often each token is in each row, modulo 256."""
    counts = np.bincount((ids % BINS + BINS * np.arange(len(ids))[:, None]).ravel(), minlength=BINS * len(ids))
    return counts.reshape(len(ids), BINS)


def entropy(share: np.ndarray) -> np.ndarray:
    """Along the last axis, nats."""
    logarithms = np.log(share, out=np.zeros_like(share, dtype=np.float64), where=share > 0)
    return np.asarray(-(share * logarithms).sum(-1))
