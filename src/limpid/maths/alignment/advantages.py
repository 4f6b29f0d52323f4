"""Rewards become advantages of answers, by comparison with others to the same prompt."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch, require


@formula(
    r"A_i = \frac{r_i - \operatorname{mean}(r)}{\operatorname{std}(r) + \epsilon}",
    Branch.PROBABILITY,
    "Shao et al. 2024, section 4.1.2, arXiv:2402.03300; without the deviation, Liu et al. 2025 (Dr. GRPO), "
    "arXiv:2503.20783; with that of the batch, Liu et al. 2025 (Part I: Tricks or Traps), arXiv:2508.08221",
)
def group_advantages(
    rewards: Float[Array, "prompt answer"], *, scale: str = "group", unbiased: bool = True, eps: float = 0.0
) -> Float[Array, "prompt answer"]:
    """How much better each answer is than the mean of all answers to the same prompt.

    The division by a group's own deviation weighs prompts: one whose answers are almost all right, or almost all wrong,
    teaches as much as one in doubt. A step then no longer follows the gradient of the mean reward.

    Takes   rewards   (prompt, answer)
            scale     in deviations of the group; of the batch, all rewards of it; or none: in the unit of the rewards
            unbiased  divide the variance by n - 1, as PyTorch does
            eps       added to the standard deviation; TRL adds 1e-4, verl 1e-6
    Gives   A         (prompt, answer)
    Limits  answers that are all alike have advantage 0
    Raises  DomainError with fewer than two answers: alone, an answer is as good as the mean, and teaches nothing
    """
    rewards = _groups(rewards)
    require(eps >= 0, f"eps is {eps}: it is added to a standard deviation, so it must not be negative")
    require(scale in ("group", "batch", "none"), f"scale is {scale!r}: choose one of group, batch, none")
    differ = rewards.max(-1, keepdims=True) > rewards.min(-1, keepdims=True)  # their mean may round, and so their std
    centred = np.where(differ, rewards - rewards.mean(-1, keepdims=True), 0.0)
    if scale == "none":
        return centred
    std = rewards.std(-1, ddof=int(unbiased), keepdims=True) if scale == "group" else rewards.std(ddof=int(unbiased))
    std = np.broadcast_to(std + eps, rewards.shape)
    return np.divide(centred, std, out=np.zeros_like(centred), where=differ & (std > 0))


@formula(
    r"A_i = r_i - \tfrac{1}{n - 1} \sum_{j \ne i} r_j",
    Branch.PROBABILITY,
    "Kool, van Hoof & Welling 2019; as RLOO, Ahmadian et al. 2024, section 2.3, arXiv:2402.14740",
)
def leave_one_out_advantages(rewards: Float[Array, "prompt answer"]) -> Float[Array, "prompt answer"]:
    """How much better each answer is than the mean of the others to the same prompt: an unbiased baseline.

    Takes   rewards  (prompt, answer)
    Gives   A        (prompt, answer)  in the unit of the rewards; they sum to 0
    Limits  answers that are all alike have advantage 0
    Raises  DomainError with fewer than two answers
    """
    rewards = _groups(rewards)
    count = rewards.shape[-1]
    gaps = rewards[..., :, None] - rewards[..., None, :]  # of equals exactly 0, which a mean that rounds is not
    return gaps.sum(-1) / (count - 1)


def _groups(rewards: Array) -> Array:
    rewards = floats(rewards)
    if rewards.ndim == 0 or rewards.shape[-1] < 2:
        raise DomainError(f"rewards have shape {rewards.shape}: a group needs at least two answers")
    return rewards
