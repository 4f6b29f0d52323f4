"""Rows that come back: the same batch, a short cycle, duplicates inside a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np

from limpid.doctor.finding import Finding
from limpid.doctor.step_record import History, StepRecord


class RowHistory:
    """What rows there were so far."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}  # row hash -> when it was served last, counted in rows
        self.count = 0
        self.batches: deque[int] = deque(maxlen=64)
        self.gaps: deque[int] = deque(maxlen=4096)
        self.entropies: deque[float] = deque(maxlen=1024)
        self.histograms: deque[np.ndarray] = deque(maxlen=64)
        self.weights = np.random.Generator(np.random.PCG64(7)).integers(1, 2**62, 4096, dtype=np.int64)
        self.largest, self.tokens, self.seen = 0, 0, set()
        self.duplicates = 0
        self.odd_steps: deque[tuple[int, int]] = deque(maxlen=8)  # odd rows and rows of recent steps
        self.odd_before = 0
        self.border: int | None = None
        self.new_rows = True  # whether this step's rows were all new
        self.held: list[Any] = []  # the tensors of the last step: objects, not values
        self.same_object = 0  # steps in a row that were given those very objects

    largest: int
    seen: set[int]

    def hashes(self, ids: np.ndarray) -> list[int]:
        """64-bit hash of each row."""
        repeat = -(-ids.shape[1] // len(self.weights))
        weights = np.tile(self.weights, repeat)[: ids.shape[1]]
        with np.errstate(over="ignore"):
            mixed = (ids + 1) * weights
            mixed ^= mixed >> 29
            return [int(h) for h in (mixed * np.int64(0x2545F4914F6CDD1D)).sum(1) ^ ids.shape[1]]


def hold(so_far: RowHistory, given: list[Any]) -> None:
    """Whether the loop hands over the very tensors of the step before: it keeps one batch, as one does on purpose."""
    same = len(given) == len(so_far.held) and all(a is b for a, b in zip(given, so_far.held, strict=True))
    so_far.same_object = so_far.same_object + 1 if same else 0
    so_far.held = given


def repeats(so_far: RowHistory, hashes: list[int], record: StepRecord, history: History) -> Iterator[Finding]:
    distinct = len(set(hashes))
    before = len(so_far.last)
    known = [so_far.last[h] for h in hashes if h in so_far.last]
    so_far.new_rows = not known
    for offset, h in enumerate(hashes):
        if h in so_far.last:
            so_far.gaps.append(so_far.count + offset - so_far.last[h])
        so_far.last[h] = so_far.count + offset
    so_far.count += len(hashes)
    whole = hash(tuple(sorted(hashes)))
    so_far.batches.append(whole)
    recent = list(so_far.batches)
    if len(recent) >= 3 and len(set(recent[-3:])) == 1:
        times = next((i for i, b in enumerate(reversed(recent)) if b != whole), len(recent))
        kept = so_far.same_object >= 2
        yield _repeat(
            record.number,
            f"the last {times} steps all used the same {distinct} sequences"
            + (", one tensor that the loop keeps: to learn a single batch by heart, it seems" if kept else ""),
            1.0,
            times,
            distinct,
            "notice" if kept else "fault",
        )
    elif len(so_far.gaps) >= 64 and before > 8 * len(hashes):
        gap = median(so_far.gaps)
        share = len(so_far.last) / so_far.count
        if gap < 0.25 * before and share < 0.5:
            yield _repeat(
                record.number,
                f"only {len(so_far.last):,} of {so_far.count:,} rows served are different, and they come back after "
                f"{gap:,.0f} rows, long before an epoch",
                0.9,
                share,
                len(so_far.last),
            )
    elif (period := _period(recent)) is not None:
        yield _repeat(
            record.number,
            f"the same {period} batches come again in the same order, for the third time: {so_far.count:,} rows "
            f"served are {len(so_far.last):,} different ones",
            0.85,
            period,
            len(so_far.last),
        )
    elif so_far.count >= 20 * len(hashes) and len(so_far.last) <= 4 * len(hashes):
        yield _repeat(
            record.number,
            f"{so_far.count:,} rows served are {len(so_far.last):,} different ones, in "
            f"{len(so_far.last) / len(hashes):.0f} batches that come again and again",
            0.8,
            so_far.count,
            len(so_far.last),
            "warning",
        )
    if distinct <= len(hashes) / 2 and len(hashes) >= 4:
        so_far.duplicates += 1
        if so_far.duplicates == 3:
            yield Finding(
                rule="rows-duplicated",
                severity="warning",
                step=record.number,
                where="batch",
                says=f"{len(hashes)} rows of a step are only {distinct} different ones, for the third time.",
                cause="workers that read the same rows, or sampling with replacement from very little data",
                fix="give each worker its own seed and its own share",
                sure=0.9,
                refuted_by="different rows",
                evidence={"rows": len(hashes), "distinct": distinct},
            )


def _period(batches: list[int]) -> int | None:
    """After how many steps the very same batches come again, if that has happened three times running."""
    for period in range(2, len(batches) // 3 + 1):
        if batches[-period:] == batches[-2 * period : -period] == batches[-3 * period : -2 * period]:
            return period
    return None


def _repeat(step: int, says: str, sure: float, number: float, distinct: int, severity: Any = "fault") -> Finding:
    return Finding(
        rule="batch-repeats",
        severity=severity,
        step=step,
        where="data",
        says=f"{says}.",
        cause="the iterator is made anew at each step, or the seed is reset",
        fix="make the iterator once per epoch: for batch in loader",
        sure=sure,
        refuted_by="new row hashes at the next step",
        evidence={"times_or_share": number, "distinct_rows": distinct},
    )
