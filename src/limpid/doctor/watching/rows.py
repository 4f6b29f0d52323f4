"""The rows that are served: hashes, histograms, labels, ids."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np

from limpid.doctor.checks.data import out_of_range, unlabelled, wrapped
from limpid.doctor.finding import Finding
from limpid.doctor.record import Past, StepRecord

BINS = 256


class Served:
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


def served(doctor: Any, record: StepRecord, past: Past) -> Iterator[Finding]:
    """Repeats, duplicates, odd rows and borders, from the token ids of the step."""
    arrays = ids_of(record)
    if not arrays:
        return
    so_far: Served = past.facts.setdefault("served", Served())
    hashes = [h for ids in arrays for h in so_far.hashes(ids)]
    record_hashes(past, hashes)
    yield from repeats(so_far, hashes, record, past)
    histograms = [
        np.bincount((ids % BINS + BINS * np.arange(len(ids))[:, None]).ravel(), minlength=BINS * len(ids)).reshape(
            len(ids), BINS
        )
        for ids in arrays
    ]
    rows = np.concatenate(histograms)
    yield from odd_rows(so_far, rows, record, past)
    so_far.histograms.append(rows.sum(0) / max(1, rows.sum()))
    yield from border(so_far, record, past)
    yield from facts_of_ids(doctor, so_far, arrays, record)


def record_hashes(past: Past, hashes: list[int]) -> None:
    past.facts["hashes"] = hashes


def ids_of(record: StepRecord) -> list[np.ndarray]:
    """Token ids of the step: as told, else as the model was given them."""
    told = [m.ids for m in record.micros if m.ids is not None]
    tensors = told or [call.ids for call in record.calls if call.ids is not None]
    if any(t.is_cuda for t in tensors) and not record.sampled:
        return []  # no wait for the device
    return [np.asarray(t.detach().cpu(), dtype=np.int64) for t in tensors if t is not None and t.numel()]


def repeats(so_far: Served, hashes: list[int], record: StepRecord, past: Past) -> Iterator[Finding]:
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
        yield _repeat(
            record.number, f"the last {times} steps all used the same {distinct} sequences", 1.0, times, distinct
        )
    elif len(so_far.gaps) >= 64 and before > 8 * len(hashes):
        gap = median(so_far.gaps)
        share = len(so_far.last) / so_far.count
        if gap < 0.25 * before and share < 0.5:
            yield _repeat(
                record.number,
                f"only {len(so_far.last):,} of {so_far.count:,} rows served are different, and they come back "
                f"after {gap:,.0f} rows, long before an epoch",
                0.9,
                share,
                len(so_far.last),
            )
    elif (period := _period(recent)) is not None:
        yield _repeat(
            record.number,
            f"the same {period} batches come again in the same order, for the third time: "
            f"{so_far.count:,} rows served are {len(so_far.last):,} different ones",
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


def odd_rows(so_far: Served, rows: np.ndarray, record: StepRecord, past: Past) -> Iterator[Finding]:
    """Rows whose entropy is far outside that of all rows so far."""
    share = rows / np.maximum(rows.sum(1, keepdims=True), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropies = -np.where(share > 0, share * np.log(share), 0).sum(1)
    known = np.asarray(so_far.entropies)
    odd: list[int] = []
    if len(known) >= 64 and rows.shape[1] and rows.sum(1).min() >= 16:
        middle = float(np.median(known))
        spread = max(1.4826 * float(np.median(np.abs(known - middle))), 0.02)
        low, high = float(known.min()), float(known.max())
        z = (entropies - middle) / spread
        # outside everything seen by a margin, too: rows of code, tables and prose scatter widely
        margin = max(0.25 * middle, 0.3)
        up, down = (
            (z > 4) & (entropies > high + 0.3 * (high - middle)),
            (z < -8) & (entropies < min(low, middle - margin) * 0.6),
        )
        odd = np.nonzero(up & (entropies > middle + 0.5) | down)[0].tolist()
    so_far.odd_steps.append((len(odd), len(rows)))
    # rows of one character are text too (a ruler, spaces): one in 200 is taken for granted, or as many as there were
    many = len(odd) >= max(2, len(rows) / 4)
    recent, total = (sum(pair[i] for pair in list(so_far.odd_steps)[-4:]) for i in (0, 1))
    usual = max(1 / 200, so_far.odd_before / max(1, so_far.count))
    again = recent >= 3 and recent > 10 * usual * total
    if len(so_far.odd_steps) == so_far.odd_steps.maxlen:
        so_far.odd_before += so_far.odd_steps[0][0]
    if odd and (many or again):
        kind = "uniform" if entropies[odd[0]] > float(np.median(known)) else "one token repeated"
        typical = float(np.median(known))
        yield Finding(
            rule="corrupt-batch",
            severity="warning",
            step=record.number,
            where=f"rows {', '.join(map(str, odd[:8]))}",
            says=f"{len(odd)} of {len(rows)} rows have token entropy {float(np.median(entropies[odd])):.1f} "
            f"nats ({kind}), usual "
            f"{typical:.1f}: they are not text like the rest.",
            cause="a corrupt shard, or another type or offset than it was written with",
            fix="look at these rows decoded; skip or clean them",
            sure=0.95,
            refuted_by=f"entropies of these rows near {typical:.1f}",
            evidence={"rows": odd[:64], "entropy": [round(float(entropies[i]), 3) for i in odd[:16]], "usual": typical},
        )
    so_far.entropies.extend(float(e) for i, e in enumerate(entropies) if i not in set(odd))


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence of histograms along the last axis, nats."""
    m = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(a > 0, a * np.log(a / m), 0).sum(-1) for a in (p, q)]
    return np.asarray((parts[0] + parts[1]) / 2)


SIDE = 8
"""Batches on each side of a border."""
SPLITS = 128


def border(so_far: Served, record: StepRecord, past: Past) -> Iterator[Finding]:
    """Tokens before and after, against random halves of the same batches: in shuffled data all halves are alike."""
    recent = list(so_far.histograms)
    if (
        len(recent) < 2 * SIDE
        or record.number % 2
        or (so_far.border is not None and record.number - so_far.border < 4 * SIDE)
    ):
        return
    table = np.stack(recent[-2 * SIDE :])
    shuffle = np.random.Generator(np.random.PCG64(record.number))
    half = np.tile(np.arange(SIDE) < SIDE // 2, (SPLITS, 1))  # halves that take as many from before as from after
    sides = np.concatenate([shuffle.permuted(half, axis=1), shuffle.permuted(half, axis=1)], axis=1)
    sides[0] = np.arange(2 * SIDE) < SIDE
    distances = divergence(sides @ table / SIDE, ~sides @ table / SIDE)
    between, others = float(distances[0]), distances[1:]
    z = (between - float(others.mean())) / max(float(others.std()), 1e-9)
    if z < 6 or between < 1.4 * float(others.max()) or between < 0.01:
        return
    so_far.border = record.number
    at = record.number - SIDE + 1
    yield Finding(
        rule="data-sorted",
        severity="warning",
        step=record.number,
        where=f"step {at}",
        says=f"the distribution of tokens changes at about step {at} (Jensen-Shannon {between:.3f} nat between "
        f"the {SIDE} batches "
        f"before and after, {float(others.mean()):.3f} between random halves of them) and stays: the data is in "
        "order of "
        "source, and a jump of the loss there is the border.",
        cause="data that is concatenated or sorted, not shuffled",
        fix="shuffle or mix before training",
        sure=0.9,
        refuted_by="random halves that differ as much",
        evidence={"between": between, "halves": float(others.mean()), "z": z, "at": at},
    )


def facts_of_ids(doctor: Any, so_far: Served, arrays: list[np.ndarray], record: StepRecord) -> Iterator[Finding]:
    so_far.largest = max(so_far.largest, max(int(ids.max()) for ids in arrays))
    so_far.tokens += sum(ids.size for ids in arrays)
    table = None if doctor.anatomy.embedding is None else int(doctor.anatomy.embedding[1].shape[0])
    if table is None:
        return
    for call in record.calls:
        if call.ids is not None and not call.ids.is_cuda:
            yield from out_of_range("inputs", call.ids, table, record.number)
    if so_far.largest < 2**16 <= table or so_far.largest < 2**8 <= table:
        if len(so_far.seen) < 70_000:
            for ids in arrays:
                so_far.seen.update(np.unique(ids).tolist())
        if record.number <= 200:
            yield from wrapped(so_far.largest, so_far.tokens, len(so_far.seen), table, record.number)


def labels(doctor: Any, record: StepRecord, past: Past) -> Iterator[Finding]:
    """Batches without a label; and how many labels each step had."""
    for index, micro in enumerate(record.micros):
        if micro.labels is not None and micro.labels.ndim == 2 and not micro.labels.is_cuda:
            record.labels += int((micro.labels >= 0).sum())
            for finding in unlabelled(micro.labels, record.number, index if len(record.micros) > 1 else None):
                if finding.severity == "fault":
                    yield finding


def below_the_floor(doctor: Any, record: StepRecord, past: Past) -> Iterator[Finding]:
    """A loss that text never seen before does not allow: asked of new rows only, over 10 steps."""
    so_far: Served | None = past.facts.get("served")
    if so_far is None or record.loss is None or not so_far.new_rows:
        past.facts["below"] = 0
        return
    vocab = doctor.anatomy.embedding[1].shape[0] if doctor.anatomy.embedding is not None else 0
    if vocab < 64 or not so_far.histograms:
        return
    mean = sum(so_far.histograms) / len(so_far.histograms)
    with np.errstate(divide="ignore", invalid="ignore"):
        unigram = float(-np.where(mean > 0, mean * np.log(mean), 0).sum())
    ok = 0 < record.loss < 0.3 * math.log(2) and unigram > 1.5 and so_far.tokens > 4096
    past.facts["below"] = past.facts.get("below", 0) + 1 if ok else 0
    if past.facts["below"] == 10:
        yield Finding(
            rule="loss-below-floor",
            severity="warning",
            step=record.number,
            where="loss",
            says=f"on rows never seen before the loss is {record.loss:.3f} nats per token, below what any text allows "
            f"({0.3 * math.log(2):.2f}): the answer is in the input.",
            cause="targets leak into the inputs: labels not shifted, no causal mask, or a task that copies",
            fix="run the causality and label tests: doctor.preflight(batch)",
            sure=0.7,
            refuted_by="an equally low loss of a model that cannot see ahead",
            evidence={"loss": record.loss, "floor": 0.3 * math.log(2), "unigram_entropy": unigram},
        )


WATCH = [served, labels, below_the_floor]
