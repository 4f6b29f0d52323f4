"""From the rewards of answers to the advantage of each of their tokens, as each method has it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from limpid.maths.alignment import (
    generalised_advantages,
    global_advantages,
    group_advantages,
    leave_one_out_advantages,
    whitened,
)
from limpid.objectives.named import Named
from limpid.objectives.policy import Policy
from limpid.objectives.ppo import PPO

Array = np.ndarray
EPS = 1e-4
"""Added to the deviation of a group, as TRL has it."""


@dataclass(frozen=True)
class Drawn:
    """What is known of drawn answers before their step."""

    rewards: Float64[Array, "prompt answer"]
    mask: Float[Array, "answers position"]  # 1 where a target belongs to an answer that is learned from
    old: Float[Array, "answers position"] | None  # log-probabilities under the policy that drew, nats
    reference: Float[Array, "answers position"] | None  # under the reference or the teacher
    values: Float[Array, "answers position"] | None = None  # before each target, of the policy that drew


def advantages(
    drawn: Drawn, method: Named | None, beta: float, objective: Policy
) -> dict[str, Float64[Array, "answers position"]]:
    """How much better than expected each token was; 0 outside the answers. Where values are learned, returns as well:
    what they are to be.

    method  none imitates a teacher: what it would rather have said, token by token, which is the reverse KL's gradient
    """
    if method is None:
        assert drawn.reference is not None
        assert drawn.old is not None
        return {"advantages": (drawn.reference - drawn.old).astype(np.float64) * drawn.mask}
    price = np.zeros(drawn.mask.shape)
    if method.kl_in_reward and beta and drawn.reference is not None and drawn.old is not None:
        price = beta * (drawn.old - drawn.reference) * drawn.mask
    if isinstance(objective, PPO):
        assert drawn.values is not None
        return _generalised(_on_last(drawn) - price, drawn.values.astype(np.float64), drawn.mask, objective)
    if method.advantage == "global":
        if np.count_nonzero(drawn.mask) < 2:  # nothing to be compared with
            return {"advantages": np.zeros(drawn.mask.shape)}
        return {"advantages": global_advantages.function(_on_last(drawn) - price, drawn.mask)}
    total = drawn.rewards - price.sum(-1).reshape(drawn.rewards.shape)
    if method.advantage == "leave_one_out":
        of_answers = leave_one_out_advantages.function(total)
    else:
        scale = {"group": "group", "group_mean": "none"}[method.advantage]
        of_answers = group_advantages.function(total, scale=scale, eps=EPS if scale == "group" else 0.0)
    return {"advantages": of_answers.reshape(-1)[:, None] * drawn.mask}


def _generalised(
    rewards: Float64[Array, "answers position"], values: Array, mask: Array, objective: PPO
) -> dict[str, Array]:
    """GAE, whitened over all tokens; returns are not."""
    found = generalised_advantages.function(rewards, values, objective.gamma, objective.lam, 0.0, mask)
    few = int((mask > 0).sum()) < 2  # nothing to be compared with
    return {"advantages": found if few else whitened.function(found, mask), "returns": (found + values) * (mask > 0)}


def _on_last(drawn: Drawn) -> Float64[Array, "answers position"]:
    """Each answer's reward on its last token."""
    rewards = np.zeros(drawn.mask.shape)
    last = drawn.mask.shape[1] - 1 - np.argmax(drawn.mask[:, ::-1] > 0, axis=1)
    rewards[np.arange(len(rewards)), last] = drawn.rewards.reshape(-1)
    return rewards * drawn.mask
