"""Borders in a run: the tokens of its last batches against those before them, by their histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

SPLITS = 128
"""Random halves that a border is compared with."""


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence of histograms along the last axis, nats."""
    m = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(a > 0, a * np.log(a / m), 0).sum(-1) for a in (p, q)]
    return np.asarray((parts[0] + parts[1]) / 2)


class Border(NamedTuple):
    """Tokens before and after, against random halves of the same batches: in shuffled data all halves are alike."""

    between: float  # divergence, nats
    halves: float  # mean divergence of the random halves
    largest: float  # the largest of theirs
    z: float

    @classmethod
    def of(cls, between: float, others: np.ndarray) -> Border:
        z = (between - float(others.mean())) / max(float(others.std()), 1e-9)
        return cls(between, float(others.mean()), float(others.max()), z)


def earlier_borders(recent: Sequence[np.ndarray], side: int) -> float:
    """The largest divergence of `side` batches and the `side` before them, of all that lie before the last ones.

    Infinite until there are half as many to compare with.
    """
    table = np.stack(recent[:-side])
    totals = np.concatenate([np.zeros((1, table.shape[1])), table.cumsum(0)])
    blocks = (totals[side:] - totals[:-side]) / side
    return float(divergence(blocks[:-side], blocks[side:]).max()) if len(blocks) >= side + side // 2 else math.inf


def jump(recent: Sequence[np.ndarray], side: int) -> float:
    """How much more pairs of batches differ across the middle of the last ones than as close pairs on one side of it.

    1 where tokens drift: a pair is as far apart as it is in time, wherever it lies. Batches are taken in pairs.
    """
    table = np.stack(recent[-2 * side :])
    table = (table[::2] + table[1::2]) / 2
    middle = len(table) // 2
    across, beside = [], []
    for lag in (1, 2):
        apart = divergence(table[:-lag], table[lag:])
        over = np.arange(len(apart)) + lag >= middle
        over &= np.arange(len(apart)) < middle
        across.append(float(apart[over].mean()))
        beside.append(float(apart[~over].mean()))
    return sum(across) / max(sum(beside), 1e-12)


def earlier_blocks(recent: Sequence[np.ndarray], side: int) -> float:
    """The largest divergence of `side` consecutive batches from all others, of all before the last ones."""
    table = np.stack(recent[:-side])
    totals = np.concatenate([np.zeros((1, table.shape[1])), table.cumsum(0)])
    blocks = totals[side:] - totals[:-side]
    return float(divergence(blocks / side, (totals[-1] - blocks) / (len(table) - side)).max())


def last_border(recent: Sequence[np.ndarray], side: int, shuffle: np.random.Generator, least: float) -> Border | None:
    """The last `side` batches against the `side` before them; None where they diverge by less than `least`."""
    table = np.stack(recent[-2 * side :])
    between = float(divergence(table[:side].mean(0), table[side:].mean(0)))
    if between < least:
        return None
    sides = _halves(side, shuffle)
    return Border.of(between, divergence(_totals(sides, table) / side, _totals(~sides, table) / side))


def inputs_stay(moments: Sequence[np.ndarray | None], side: int, shuffle: np.random.Generator) -> bool:
    """Whether measured inputs are the same before and after a border `2 side` batches ago, where labels changed.

    Their moments, each over its spread, differ no more than between random halves; False where they are not known.
    """
    around = list(moments)[-3 * side : -side]
    known = [one for one in around if one is not None]
    if len(known) < 2 * side or len({len(one) for one in known}) > 1:
        return False
    table = np.stack(known)
    table = (table - table.mean(0)) / np.maximum(table.std(0), 1e-12)
    sides = _halves(side, shuffle)
    others = np.square(_totals(sides, table) - _totals(~sides, table)).sum(1)
    between = float(np.square(table[:side].sum(0) - table[side:].sum(0)).sum())
    return bool(between <= others.max())


def _halves(side: int, shuffle: np.random.Generator) -> np.ndarray:
    """Random halves of 2 `side` batches that take as many from before the middle as from after it."""
    half = np.tile(np.arange(side) < side // 2, (SPLITS, 1))
    return np.concatenate([shuffle.permuted(half, axis=1), shuffle.permuted(half, axis=1)], axis=1)


def against_all(recent: Sequence[np.ndarray], side: int, shuffle: np.random.Generator, least: float) -> Border | None:
    """The last batches against all before them, as `side` of those are against the rest of them.

    None where they diverge by no more than `least`.
    """
    before, last = np.stack(recent[:-side]), np.stack(recent[-side:])
    between = float(divergence(last.mean(0), before.mean(0)))
    if between <= least:
        return None
    chosen = shuffle.permuted(np.tile(np.arange(len(before)) < side, (SPLITS, 1)), axis=1)
    others = divergence(_totals(chosen, before) / side, _totals(~chosen, before) / (len(before) - side))
    return Border.of(between, others)


def stays(recent: Sequence[np.ndarray], side: int, shuffle: np.random.Generator) -> Border | None:
    """The last batches against all before a border `2 side` batches ago, which was found without them.

    None where they are as near to those before it as to those after it.
    """
    before, after, fresh = recent[: -2 * side], recent[-2 * side : -side], recent[-side:]
    middle = np.mean(fresh, axis=0)
    if divergence(middle, np.mean(after, axis=0)) >= divergence(middle, np.mean(before, axis=0)):
        return None
    return against_all([*before, *fresh], side, shuffle, 0.0)


def _totals(chosen: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The sum of each choice of rows, by torch: NumPy would wake threads of its own against those of training."""
    total: np.ndarray = (torch.from_numpy(chosen.astype(table.dtype)) @ torch.from_numpy(table)).numpy()
    return total
