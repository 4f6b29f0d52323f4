"""Losses of alignment on a few numbers, for chapters, figures and exercises: the ones that train."""

from __future__ import annotations

from typing import Any

import numpy as np

from limpid.maths import alignment
from limpid.maths.alignment.preference import sigmoid
from limpid.maths.foundations import matmul
from limpid.planning.adapters import low_rank


def preferred(chosen: float, rejected: float) -> float:
    """How likely the chosen answer is to win, by its reward and the other's."""
    return float(sigmoid(np.asarray(chosen - rejected, dtype=np.float64)))


def reward_loss(chosen: float, rejected: float) -> float:
    """−ln of that probability."""
    return float(alignment.reward_loss(np.array([chosen]), np.array([rejected]))[0])


def masked_loss(losses: list[float], mask: list[float]) -> float:
    """The mean loss of the tokens that count."""
    return float(alignment.aggregate(np.array([losses]), np.array([mask], dtype=np.float64)))


def dpo(policy: tuple[float, float], reference: tuple[float, float], beta: float) -> float:
    """Of log-probabilities of the chosen and the rejected answer."""
    chosen, rejected, before_chosen, before_rejected = (np.array([one]) for one in (*policy, *reference))
    return float(alignment.dpo(chosen, rejected, before_chosen, before_rejected, beta=beta)[0])


def clipped_gain(ratio: float, advantage: float, epsilon: float) -> float:
    """What a token gains in PPO: its ratio as far as it pays, times its advantage."""
    return -float(alignment.ppo(np.log([ratio]), np.zeros(1), np.array([advantage], dtype=np.float64), epsilon)[0])


def group(rewards: Any, scale: str = "group", unbiased: bool = True) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Advantages of answers to one prompt."""
    found = alignment.group_advantages(np.array([rewards], dtype=np.float64), scale=scale, unbiased=unbiased)
    return np.asarray(found[0])


NAMES: dict[str, Any] = {
    "preferred": preferred, "reward_loss": reward_loss, "masked_loss": masked_loss, "dpo": dpo,
    "clipped_gain": clipped_gain, "group": group, "low_rank": low_rank, "matmul": matmul,
}  # fmt: skip
"""What a chapter may compute with."""
