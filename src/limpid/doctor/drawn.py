"""What a batch of a policy's own answers says of its rewards and advantages, by names that curves know."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

import numpy as np

from limpid.doctor.micro_batches import Micro

Array = np.ndarray
LEAST = 1e-6
"""Relative difference of rewards, or advantages, below which float32 may hold them as equal."""


class Group(NamedTuple):
    """The answers to one prompt."""

    rewards: Array  # (answer,)
    advantages: Array | None  # (answer,)
    broken_off: Array | None  # (answer,) whether it ends without a token that stops it; None where nobody knows


def measured(micros: Sequence[Micro], ends: Set[int]) -> dict[str, float]:
    """Shares over the groups of a draw; nothing of other batches.

    frac_reward_zero_std        groups whose rewards are all equal
    completions/told_by_length  of the variance of rewards that lies between answers that ended and those broken off,
                                which have less
    advantages/lost_order       pairs that are rewarded differently and have equal advantages
    """
    groups = [group for micro in micros for group in groups_of(micro, ends) if len(group.rewards) > 1]
    if not groups:
        return {}
    found = {"frac_reward_zero_std": float(np.mean([np.ptp(group.rewards) == 0 for group in groups]))}
    known = [group for group in groups if group.broken_off is not None]
    if known:
        rewards, cut = (np.concatenate([group[i] for group in known]) for i in (0, 2))
        found["completions/clipped_ratio"] = float(cut.mean())
        if 0 < cut.mean() < 1 and rewards.std() > 0:
            found["completions/told_by_length"] = _explained(rewards, cut)
    differ, lost = np.sum([_orders(group) for group in groups], axis=0)
    if differ:
        found["advantages/lost_order"] = float(lost / differ)
    return found


def _explained(rewards: Array, cut: Array) -> float:
    means = [float(rewards[cut == kind].mean()) for kind in (True, False)]
    between = cut.mean() * (1 - cut.mean()) * (means[1] - means[0]) ** 2
    return float(between / rewards.var()) if means[0] < means[1] else 0.0


def _orders(group: Group) -> tuple[int, int]:
    """Pairs that are rewarded differently, and those of them with equal advantages."""
    if group.advantages is None:
        return 0, 0
    apart = [np.abs(x[:, None] - x) > LEAST * max(1e-30, np.abs(x).max()) for x in (group.rewards, group.advantages)]
    return int(apart[0].sum()), int((apart[0] & ~apart[1]).sum())


def groups_of(micro: Micro, ends: Set[int]) -> Iterator[Group]:
    """The groups of a micro-batch: rows in a row that have one prompt; none where it holds no rewards."""
    rewards, mask = micro.array("rewards"), micro.answer_mask
    if rewards is None or mask is None or rewards.ndim != 1 or len(rewards) != len(mask):
        return
    advantages, cut = _of_answers(micro.array("advantages"), mask), _broken_off(micro, mask, ends)
    prompts = _prompts(micro, mask)
    begins = [0, *(i for i in range(1, len(prompts)) if prompts[i] != prompts[i - 1]), len(prompts)]
    learned: Array = np.any(mask, axis=-1)
    for first, after in itertools.pairwise(begins):
        rows = np.arange(first, after)[learned[first:after]]
        parts = [None if x is None else x[rows] for x in (rewards.astype(np.float64), advantages, cut)]
        assert parts[0] is not None
        yield Group(parts[0], parts[1], parts[2])


def _prompts(micro: Micro, mask: Array) -> list[object]:
    """What tells the prompt of each row: its number in the data, or its tokens before the answer."""
    if len(micro.rows) == len(mask):
        return list(micro.rows)
    given = micro.array("prompt_ids")
    if given is not None and len(given) == len(mask):
        return [row.tobytes() for row in given]
    ids = micro.array("input_ids", "tokens")
    if ids is None or ids.shape != mask.shape:
        return list(range(len(mask)))
    return [row[: int(np.argmax(answer))].tobytes() for row, answer in zip(ids, mask, strict=True)]


def _of_answers(advantages: Array | None, mask: Array) -> Array | None:
    """One advantage for each answer: that of its first token, or its own."""
    if advantages is None or len(advantages) != len(mask):
        return None
    if advantages.ndim == 1:
        return advantages
    return advantages[np.arange(len(mask)), mask.argmax(-1)] if advantages.shape == mask.shape else None


def _broken_off(micro: Micro, mask: Array, ends: Set[int]) -> Array | None:
    """Which answers have no token that stops them at their end."""
    ids = micro.answer_ids
    if ids is None or ids.shape != mask.shape or not ends:
        return None
    last = mask.shape[1] - 1 - mask[:, ::-1].argmax(-1)
    return ~np.isin(ids[np.arange(len(mask)), last], list(ends))
