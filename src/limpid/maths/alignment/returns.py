"""Rewards of tokens become advantages of tokens, by what was still to come, or what was expected."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from limpid.errors import ShapeError
from limpid.maths.alignment.preference import _alike
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch, require


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
    mask: Float[Array, "*batch time"] | None = None,
) -> Float[Array, "*batch time"]:
    """How much better than expected each step turned out, looking ahead with decreasing trust.

    Takes   rewards     (…, time)
            values      (…, time)  estimate before each step
            gamma, lam  discount, of every step or of each (0 where an episode ends), and how far to look ahead
            last_value  (…)        estimate after the last step: not 0 where an episode was cut short
            mask        (…, time)  1 where there is a step; others, such as prompt and padding, are passed over
    Gives   advantages  (…, time)  0 where there is no step
    Limits  γ = λ = 1: the return less the value
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
    steps = np.ones(rewards.shape) if mask is None else floats(mask)
    if steps.shape != rewards.shape:
        raise ShapeError(f"mask has shape {steps.shape}, rewards {rewards.shape}: 1 or 0 for every step")
    advantages, running, after = np.zeros_like(rewards), np.zeros(rewards.shape[:-1]), last
    for t in reversed(range(rewards.shape[-1])):
        surprise = rewards[..., t] + discount[..., t] * after - values[..., t]
        here, there = surprise + discount[..., t] * lam * running, steps[..., t] > 0
        running, after = np.where(there, here, running), np.where(there, values[..., t], after)
        advantages[..., t] = np.where(there, here, 0.0)
    return advantages


@formula(
    r"y = \frac{x - \operatorname{mean}(x)}{\sqrt{\operatorname{var}(x) + \epsilon}}",
    Branch.PROBABILITY,
    "as TRL and verl whiten the advantages of PPO; Andrychowicz et al. 2021, section 3.3, arXiv:2006.05990",
)
def whitened(
    x: Float[Array, "answer token"], mask: Float[Array, "answer token"], eps: float = 1e-8
) -> Float[Array, "answer token"]:
    """How far above the mean of all tokens of all answers, in standard deviations.

    Takes   x     (answer, token)
            mask  (answer, token)  1 where a token belongs to the answer
            eps   ε, added to the variance, which is divided by n - 1
    Gives   y     (answer, token)  0 outside the answers
    Limits  mean 0 and variance 1 over the tokens
    Raises  ShapeError when the shapes differ, DomainError with fewer than two tokens
    """
    x, mask = _alike(x=x, mask=mask)
    there = mask > 0
    require(int(there.sum()) >= 2, f"the mask has {int(there.sum())} tokens: a deviation needs at least two")
    of_tokens = x[there]
    return np.where(there, (x - of_tokens.mean()) / np.sqrt(of_tokens.var(ddof=1) + eps), 0.0)


@formula(
    r"G_t = r_t + \gamma G_{t+1}, \quad "
    r"A_t = \frac{G_t - \operatorname{mean}(G)}{\sqrt{\operatorname{var}(G) + \epsilon}}",
    Branch.OPTIMISATION,
    "Hu et al. 2025 (REINFORCE++), arXiv:2501.03262; as verl has it",
)
def global_advantages(
    rewards: Float[Array, "answer token"],
    mask: Float[Array, "answer token"],
    gamma: float = 1.0,
    eps: float = 1e-8,
) -> Float[Array, "answer token"]:
    """How much more was still to come than on average over all tokens of all answers, in standard deviations.

    Takes   rewards     (answer, token)  of each token, see `rewards_with_kl`
            mask        (answer, token)  1 where a token belongs to the answer
            gamma       γ, discount per token
            eps         ε, added to the variance
    Gives   advantages  (answer, token)  0 outside the answers
    Limits  mean 0 and variance 1 over the tokens; no groups are needed, and hard prompts are not told from easy ones
    Raises  ShapeError when the shapes differ, DomainError with fewer than two tokens
    """
    rewards, mask = _alike(rewards=rewards, mask=mask)
    returns = generalised_advantages.function(rewards, np.zeros(rewards.shape), gamma, 1.0, 0.0, mask)
    return whitened.function(returns, mask, eps)
