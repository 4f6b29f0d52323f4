"""Rewards become advantages: of answers in a group, or of tokens by what was expected of them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError, ShapeError
from limpid.maths.alignment.preference import _alike
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch, require


@formula(
    r"A_i = \frac{r_i - \operatorname{mean}(r)}{\operatorname{std}(r)}",
    Branch.PROBABILITY,
    "Shao et al. 2024, section 4.1.2, arXiv:2402.03300",
)
def group_advantages(
    rewards: Float[Array, "prompt answer"], *, unbiased: bool = True, eps: float = 0.0
) -> Float[Array, "prompt answer"]:
    """How much better each answer is than the others to the same prompt, in standard deviations.

    Takes   rewards   (prompt, answer)
            unbiased  divide the variance by n - 1, as PyTorch does
            eps       added to the standard deviation
    Gives   A         (prompt, answer)
    Limits  answers that are all alike have advantage 0
    Raises  DomainError with fewer than two answers
    """
    rewards = floats(rewards)
    if rewards.ndim == 0 or rewards.shape[-1] < 2:
        raise DomainError(f"rewards have shape {rewards.shape}: a group needs at least two answers")
    require(eps >= 0, f"eps is {eps}: it is added to a standard deviation, so it must not be negative")
    centred = rewards - rewards.mean(-1, keepdims=True)
    std = rewards.std(-1, ddof=int(unbiased), keepdims=True) + eps
    differ = rewards.max(-1, keepdims=True) > rewards.min(
        -1, keepdims=True
    )  # their mean may round, so its std may not be 0
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
    rewards = floats(rewards)
    if rewards.ndim == 0 or rewards.shape[-1] < 2:
        raise DomainError(f"rewards have shape {rewards.shape}: a group needs at least two answers")
    count = rewards.shape[-1]
    gaps = rewards[..., :, None] - rewards[..., None, :]  # of equals exactly 0, which a mean that rounds is not
    return gaps.sum(-1) / (count - 1)


@formula(
    r"r_t = -\beta (\ell_t - \ell^0_t) + [t = T]\, R",
    Branch.PROBABILITY,
    "Ziegler et al. 2019, eq. 2, arXiv:1909.08593",
)
def rewards_with_kl(
    scores: Float[Array, " answer"],
    log_probabilities: Float[Array, "answer token"],
    reference_log_probabilities: Float[Array, "answer token"],
    coefficient: float,
) -> Float[Array, "answer token"]:
    """The reward of each token: a price for leaving the reference, and the answer's score on its last token.

    Takes   scores      (answer,)
            …           (answer, token)  log-probabilities, nats
            coefficient β
    Gives   rewards     (answer, token)
    Raises  ShapeError when the shapes differ
    """
    log_p, reference = _alike(
        log_probabilities=log_probabilities, reference_log_probabilities=reference_log_probabilities
    )
    scores = floats(scores)
    if scores.shape != log_p.shape[:-1] or log_p.shape[-1] == 0:
        raise ShapeError(f"scores have shape {scores.shape}, log_probabilities {log_p.shape}: one score per answer")
    rewards = -coefficient * (log_p - reference)
    rewards[..., -1] += scores
    return rewards


@formula(
    r"G_t = r_t + \gamma_t \bigl((1 - \lambda) V_t + \lambda G_{t+1}\bigr), \quad G_{T} = r_T + \gamma_T V_T",
    Branch.OPTIMISATION,
    "Sutton & Barto 2018, Reinforcement Learning, eq. 12.20",
)
def lambda_returns(
    rewards: Float[Array, "*batch time"],
    discounts: Float[Array, "*batch time"],
    values: Float[Array, "*batch time"],
    lam: float,
) -> Float[Array, "*batch time"]:
    """A blend of returns that trust the value estimate after one step, two steps, …, and never.

    Takes   rewards    (…, time)
            discounts  (…, time)  γ of each step, 0 where an episode ends
            values     (…, time)  estimate of what follows each step
            lam        λ in [0, 1]: 0 trusts the next estimate, 1 only the last
    Gives   returns    (…, time)
    Raises  ShapeError when the shapes differ
    """
    rewards, discounts, values = _alike(rewards=rewards, discounts=discounts, values=values)
    if rewards.ndim == 0 or rewards.shape[-1] == 0:
        raise ShapeError(f"rewards have shape {rewards.shape}: returns need at least one step")
    require(0 <= lam <= 1, f"lam is {lam}: it lies in [0, 1]")
    returns = np.empty_like(rewards)
    after = values[..., -1]
    for t in reversed(range(rewards.shape[-1])):
        after = rewards[..., t] + discounts[..., t] * ((1 - lam) * values[..., t] + lam * after)
        returns[..., t] = after
    return returns


@formula(
    r"A_t = \delta_t + \gamma_t \lambda A_{t+1}, \quad \delta_t = r_t + \gamma_t V_{t+1} - V_t",
    Branch.OPTIMISATION,
    "Schulman et al. 2016, eq. 16, arXiv:1506.02438",
)
def generalised_advantages(
    rewards: Float[Array, "*batch time"],
    values: Float[Array, "*batch time"],
    gamma: float | Float[Array, "*batch time"] = 1.0,
    lam: float = 0.95,
    last_value: float | Float[Array, "*batch"] = 0.0,
) -> Float[Array, "*batch time"]:
    """How much better than expected each step turned out, looking ahead with decreasing trust.

    Takes   rewards     (…, time)
            values      (…, time)  estimate before each step
            gamma, lam  discount, of every step or of each (0 where an episode ends), and how far to look ahead
            last_value  (…)        estimate after the last step: not 0 where an episode was cut short
    Gives   advantages  (…, time)
    Raises  ShapeError when the shapes differ
    """
    rewards, values = _alike(rewards=rewards, values=values)
    if rewards.ndim == 0:
        raise ShapeError(f"rewards have shape {rewards.shape}: advantages need an axis of time")
    discount = np.broadcast_to(floats(gamma), rewards.shape)
    last = np.broadcast_to(floats(last_value), rewards.shape[:-1])
    require(
        0 <= lam <= 1 and bool(((discount >= 0) & (discount <= 1)).all()),
        f"gamma is {gamma}, lam {lam}: both lie in [0, 1]",
    )
    after = np.concatenate((values[..., 1:], last[..., None]), -1)
    surprise = rewards + discount * after - values
    advantages, running = np.empty_like(rewards), np.zeros(rewards.shape[:-1])
    for t in reversed(range(rewards.shape[-1])):
        running = surprise[..., t] + discount[..., t] * lam * running
        advantages[..., t] = running
    return advantages
