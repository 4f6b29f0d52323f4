"""From the rewards of answers to the advantage of each of their tokens, as each method has it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from limpid.maths.alignment import global_advantages, group_advantages, leave_one_out_advantages
from limpid.objectives.policy import Named

Array = np.ndarray
EPS = 1e-4
"""Added to the deviation of a group, as TRL has it."""


@dataclass(frozen=True)
class Drawn:
    """What is known of drawn answers before their step."""

    rewards: Float64[Array, "prompt answer"]
    mask: Float[Array, "answers position"]  # 1 where a target belongs to an answer that is learned from
    old: Float[Array, "answers position"]  # log-probabilities under the policy that drew, nats
    reference: Float[Array, "answers position"] | None  # under the reference or the teacher


def advantages(drawn: Drawn, method: Named | None, beta: float) -> Float64[Array, "answers position"]:
    """How much better than expected each token was; 0 outside the answers.

    method  none imitates a teacher: what it would rather have said, token by token, which is the reverse KL's gradient
    """
    if method is None:
        assert drawn.reference is not None
        return (drawn.reference - drawn.old).astype(np.float64) * drawn.mask
    price = np.zeros(drawn.mask.shape)
    if method.kl_in_reward and beta and drawn.reference is not None:
        price = beta * (drawn.old - drawn.reference) * drawn.mask
    if method.advantage == "global":
        found: Array = global_advantages.function(_on_last(drawn) - price, drawn.mask)
        return found
    total = drawn.rewards - price.sum(-1).reshape(drawn.rewards.shape)
    if method.advantage == "leave_one_out":
        of_answers = leave_one_out_advantages.function(total)
    else:
        scale = {"group": "group", "group_mean": "none"}[method.advantage]
        of_answers = group_advantages.function(total, scale=scale, eps=EPS if scale == "group" else 0.0)
    spread: Array = of_answers.reshape(-1)[:, None] * drawn.mask
    return spread


def _on_last(drawn: Drawn) -> Float64[Array, "answers position"]:
    """Each answer's reward on its last token."""
    rewards = np.zeros(drawn.mask.shape)
    last = drawn.mask.shape[1] - 1 - np.argmax(drawn.mask[:, ::-1] > 0, axis=1)
    rewards[np.arange(len(rewards)), last] = drawn.rewards.reshape(-1)
    return rewards * drawn.mask
