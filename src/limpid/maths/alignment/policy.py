"""Policy gradients: advantages move log-probabilities, not too far at once, nor too far from a reference."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from limpid.maths.alignment.divergence import (
    kl_estimate,
    kl_estimate_backward,
    weighted_kl_estimate,
    weighted_kl_estimate_backward,
)
from limpid.maths.alignment.preference import _alike
from limpid.maths.alignment.ratios import clipped_ratios, clipped_ratios_backward
from limpid.maths.formula import formula
from limpid.maths.operation import Array, Branch, in_latex


@formula(
    r"L = -\hat\rho A",
    Branch.OPTIMISATION,
    "Schulman et al. 2017, eq. 6 and 7, arXiv:1707.06347",
    (r"\bar{\hat\rho} = -\bar L A", r""),
)
def policy_losses(ratios: Float[Array, "*token"], advantages: Float[Array, "*token"]) -> Float[Array, "*token"]:
    """What a token loses by not being likelier: the gain of its advantage, negated.

    Takes   ratios      (...)  ρ̂, clipped or not
            advantages  (...)  A
    Gives   L           (...)  in the unit of the advantages
    Limits  nothing where there is no advantage, however large ρ̂ is
    Raises  ShapeError when the shapes differ
    """
    ratio, advantage = _alike(ratios=ratios, advantages=advantages)
    return np.where(advantage == 0, 0.0, -ratio * advantage)


@policy_losses.derivative
def policy_losses_backward(loss_bar: Array, ratios: Array, advantages: Array) -> tuple[Array, None]:
    return -loss_bar * advantages, None


@formula(
    r"L = -\hat\rho A\, \ell",
    Branch.OPTIMISATION,
    "MiniMax 2025 (CISPO), eq. 4, arXiv:2506.13585; ρ̂ = 1 is Williams 1992 (REINFORCE), doi:10.1007/BF00992696",
    (r"\bar \ell = -\bar L\, \hat\rho A", r"", r""),
)
def weighted_policy_losses(
    log_probabilities: Float[Array, "*token"],
    weights: Float[Array, "*token"],
    advantages: Float[Array, "*token"],
) -> Float[Array, "*token"]:
    """The surprise of a token, weighted by its advantage and by a ratio through which no gradient flows.

    Takes   log_probabilities  (...)  ℓ of the policy, nats
            weights            (...)  ρ̂
            advantages         (...)  A
    Gives   L                  (...)
    Limits  a token beyond the largest weight still learns, by that weight
    Raises  ShapeError when the shapes differ
    """
    log_p, weight, advantage = _alike(log_probabilities=log_probabilities, weights=weights, advantages=advantages)
    return -weight * advantage * log_p


@weighted_policy_losses.derivative
def weighted_policy_losses_backward(
    loss_bar: Array, log_probabilities: Array, weights: Array, advantages: Array
) -> tuple[Array, None, None]:
    return -loss_bar * weights * advantages, None, None


@formula(
    r"L' = L + \beta k",
    Branch.OPTIMISATION,
    "Shao et al. 2024, eq. 3, arXiv:2402.03300",
    (r"\bar L = \bar L'", r"\bar k = \beta \bar L'"),
)
def penalised_losses(
    losses: Float[Array, "*token"], divergences: Float[Array, "*token"], beta: float = 0.04
) -> Float[Array, "*token"]:
    """Each token's loss with the price of leaving the reference.

    Takes   losses       (...)
            divergences  (...)  an estimate of KL(π‖π₀) by each token, nats
            beta         β, per nat
    Gives   L'           (...)
    Raises  ShapeError when the shapes differ
    """
    loss, divergence = _alike(losses=losses, divergences=divergences)
    return loss + beta * divergence


@penalised_losses.derivative
def penalised_losses_backward(
    loss_bar: Array, losses: Array, divergences: Array, beta: float = 0.04
) -> tuple[Array, Array]:
    return loss_bar, beta * loss_bar


@penalised_losses.written
def penalised_losses_lines(beta: float = 0.04) -> tuple[str, tuple[str, ...]]:
    shown = in_latex(beta)
    return rf"L' = L + {shown}\, k", (r"\bar L = \bar L'", rf"\bar k = {shown}\, \bar L'")


@formula(
    r"L = -\min\bigl(\rho A,\ \operatorname{clip}(\rho, 1 - \varepsilon, 1 + \varepsilon) A\bigr), \quad "
    r"\rho = e^{\ell - \ell_{old}}",
    Branch.OPTIMISATION,
    "Schulman et al. 2017, eq. 7, arXiv:1707.06347",
    (r"\bar \ell = -\bar L\, \rho A\,[\text{not clipped}]", r"", r""),
)
def ppo(
    log_probabilities: Float[Array, "*token"],
    old_log_probabilities: Float[Array, "*token"],
    advantages: Float[Array, "*token"],
    epsilon: float = 0.2,
) -> Float[Array, "*token"]:
    """Proximal policy optimisation: gain from an advantage only while the policy stays near the one that sampled.

    Takes   log_probabilities      (token,)  ℓ of the policy, nats
            old_log_probabilities  (token,)  of the policy that sampled
            advantages             (token,)  A, how much better than expected
            epsilon                ε, how far ρ may pay
    Gives   L                      (token,)
    Limits  beyond the clip on the side where A would push farther, the gradient is exactly 0
    Raises  ShapeError when the shapes differ
    """
    ratio, advantage = _ratio(log_probabilities, old_log_probabilities, advantages)
    return policy_losses.function(clipped_ratios.function(ratio, advantage, epsilon), advantage)


@ppo.derivative
def ppo_backward(
    loss_bar: Array,
    log_probabilities: Array,
    old_log_probabilities: Array,
    advantages: Array,
    epsilon: float = 0.2,
) -> tuple[Array, None, None]:
    ratio, advantage = _ratio(log_probabilities, old_log_probabilities, advantages)
    ratio_bar, _ = clipped_ratios_backward(-loss_bar * advantage, ratio, advantage, epsilon)
    return np.where(ratio_bar == 0, 0.0, ratio * ratio_bar), None, None


@formula(
    r"J = \tfrac1T \sum_t \min\bigl(\rho_t A_t, \operatorname{clip}(\rho_t) A_t\bigr) - \beta D_t, \quad "
    r"D_t = r_t - \ln r_t - 1, \quad r_t = \pi_0 / \pi",
    Branch.OPTIMISATION,
    "Shao et al. 2024, eq. 3 and 4, arXiv:2402.03300; the estimator of KL, Schulman 2020 (k3)",
    (r"\bar \ell_t = \tfrac{\bar J}{T} \bigl(\rho_t A_t\,[\text{not clipped}] - \beta (1 - r_t)\bigr)", r"", r"", r""),
)
def grpo(
    log_probabilities: Float[Array, "*token"],
    old_log_probabilities: Float[Array, "*token"],
    reference_log_probabilities: Float[Array, "*token"],
    advantages: Float[Array, "*token"],
    epsilon: float = 0.2,
    beta: float = 0.04,
    *,
    importance_weighted: bool = False,
) -> Float[Array, ""]:
    """Group-relative policy optimisation: PPO's gain with advantages from a group of answers, less a pull to π₀.

    The pull of the paper's penalty is ∇KL(π₀‖π), though its value estimates KL(π‖π₀); weighted by ρ it is ∇KL(π‖π₀)
    of the next token, on policy as well.

    Takes   …log_probabilities   (token,)  of the policy, of the one that sampled, of the reference; nats
            advantages           (token,)  see `group_advantages`
            epsilon, beta        clip and weight of the KL penalty
            importance_weighted  weight the penalty by ρ, see `weighted_kl_estimate`
    Gives   J                    ()        to be maximised; its negative is the loss
    Raises  ShapeError when the shapes differ
    """
    ratio, _ = _ratio(log_probabilities, old_log_probabilities, advantages)
    losses = ppo.function(log_probabilities, old_log_probabilities, advantages, epsilon)
    penalty = kl_estimate.function(log_probabilities, reference_log_probabilities)
    if importance_weighted:
        penalty = weighted_kl_estimate.function(log_probabilities, reference_log_probabilities, ratio)
    return -(losses + beta * penalty).mean()


@grpo.derivative
def grpo_backward(
    j_bar: Float[Array, ""],
    log_probabilities: Float[Array, "*token"],
    old_log_probabilities: Float[Array, "*token"],
    reference_log_probabilities: Float[Array, "*token"],
    advantages: Float[Array, "*token"],
    epsilon: float = 0.2,
    beta: float = 0.04,
    *,
    importance_weighted: bool = False,
) -> tuple[Float[Array, "*token"], None, None, None]:
    each = np.broadcast_to(-j_bar / np.size(log_probabilities), np.shape(log_probabilities))
    of_gain, *_ = ppo_backward(each, log_probabilities, old_log_probabilities, advantages, epsilon)
    if not importance_weighted:
        of_penalty, _ = kl_estimate_backward(beta * each, log_probabilities, reference_log_probabilities)
        return of_gain + of_penalty, None, None, None
    ratio, _ = _ratio(log_probabilities, old_log_probabilities, advantages)
    of_penalty, _, ratio_bar = weighted_kl_estimate_backward(
        beta * each, log_probabilities, reference_log_probabilities, ratio
    )
    return of_gain + of_penalty + ratio * ratio_bar, None, None, None


def _ratio(log_p: Array, old: Array, advantages: Array) -> tuple[Array, Array]:
    """ρ and A."""
    log_p, old, advantage = _alike(log_probabilities=log_p, old_log_probabilities=old, advantages=advantages)
    return np.exp(log_p - old), advantage
