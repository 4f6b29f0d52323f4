"""What rows are made of: histograms of their tokens, rows unlike the rest, borders in the order of the data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from limpid.doctor.finding import Finding
from limpid.doctor.step_record import History, StepRecord
from limpid.doctor.watching.repeats import RowHistory

BINS = 256


def odd_rows(so_far: RowHistory, rows: np.ndarray, record: StepRecord, history: History) -> Iterator[Finding]:
    """Rows whose entropy is far outside that of all rows so far."""
    share = rows / np.maximum(rows.sum(1, keepdims=True), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropies = -np.where(share > 0, share * np.log(share), 0).sum(1)
    known = np.asarray(so_far.entropies)
    odd: list[int] = []
    ordinary = len(known) and known.min() <= entropies.min() and entropies.max() <= known.max()
    if not ordinary and len(known) >= 64 and rows.shape[1] and rows.sum(1).min() >= 16:
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
            says=f"{len(odd)} of {len(rows)} rows have token entropy {float(np.median(entropies[odd])):.1f} nats "
            f"({kind}), usual {typical:.1f}: they are not text like the rest.",
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
"""Random halves that a border is compared with."""
LEAST = 0.01
"""Nats of Jensen-Shannon divergence below which nobody would call it a border."""


def border(so_far: RowHistory, record: StepRecord, history: History) -> Iterator[Finding]:
    """Tokens before and after, against random halves of the same batches: in shuffled data all halves are alike."""
    recent = list(so_far.histograms)
    if (
        len(recent) < 2 * SIDE
        or record.number % 2
        or (so_far.border is not None and record.number - so_far.border < 4 * SIDE)
    ):
        return
    table = np.stack(recent[-2 * SIDE :])
    between = float(divergence(table[:SIDE].mean(0), table[SIDE:].mean(0)))
    shuffle = np.random.Generator(np.random.PCG64(record.number))
    against_all = _against_all(recent, shuffle)
    if between < LEAST and not against_all:
        return
    half = np.tile(np.arange(SIDE) < SIDE // 2, (SPLITS, 1))  # halves that take as many from before as from after
    sides = np.concatenate([shuffle.permuted(half, axis=1), shuffle.permuted(half, axis=1)], axis=1)
    others = divergence(_totals(sides, table) / SIDE, _totals(~sides, table) / SIDE)
    z = (between - float(others.mean())) / max(float(others.std()), 1e-9)
    if (z < 6 or between < 1.4 * float(others.max()) or between < LEAST) and not against_all:
        return
    so_far.border = record.number
    at = record.number - SIDE + 1
    yield Finding(
        rule="data-sorted",
        severity="warning",
        step=record.number,
        where=f"step {at}",
        says=f"the distribution of tokens changes at about step {at} (Jensen-Shannon {between:.3f} nat between the "
        f"{SIDE} batches before and after, {float(others.mean()):.3f} between random halves of them) and stays: the "
        "data is in order of source, and a jump of the loss there is the border.",
        cause="data that is concatenated or sorted, not shuffled",
        fix="shuffle or mix before training",
        sure=0.9,
        refuted_by="random halves that differ as much",
        evidence={"between": between, "halves": float(others.mean()), "z": z, "at": at},
    )


def _totals(chosen: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The sum of each choice of rows, by torch: NumPy would wake threads of its own against those of training."""
    total: np.ndarray = (torch.from_numpy(chosen.astype(table.dtype)) @ torch.from_numpy(table)).numpy()
    return total


def _against_all(recent: list[np.ndarray], shuffle: np.random.Generator) -> bool:
    """The last batches against all before them, as no eight of those are against the rest of them."""
    if len(recent) < 4 * SIDE:
        return False
    before, last = np.stack(recent[:-SIDE]), np.stack(recent[-SIDE:])
    between = float(divergence(last.mean(0), before.mean(0)))
    if between <= LEAST:
        return False
    chosen = shuffle.permuted(np.tile(np.arange(len(before)) < SIDE, (SPLITS, 1)), axis=1)
    others = divergence(_totals(chosen, before) / SIDE, _totals(~chosen, before) / (len(before) - SIDE))
    z = (between - float(others.mean())) / max(float(others.std()), 1e-9)
    return z > 10 and between > 1.8 * float(others.max())
