"""Policy gradients: advantages move log-probabilities, not too far at once, nor too far from a reference."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from limpid.maths.alignment.preference import _alike
from limpid.maths.formula import formula
from limpid.maths.operation import Array, Branch, require


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
    ratio, advantage, clipped = _ratio_parts(log_probabilities, old_log_probabilities, advantages, epsilon)
    return -np.minimum(_gain(ratio, advantage), clipped * advantage)


@ppo.derivative
def ppo_backward(
    loss_bar: Array,
    log_probabilities: Array,
    old_log_probabilities: Array,
    advantages: Array,
    epsilon: float = 0.2,
) -> tuple[Array, None, None]:
    ratio, advantage, _ = _ratio_parts(log_probabilities, old_log_probabilities, advantages, epsilon)
    return -loss_bar * _gain_slope(ratio, advantage, epsilon), None, None


@formula(
    r"L_t = -\min\bigl(\rho_t A_t, \operatorname{clip}(\rho_t) A_t\bigr) + \beta D_t, \quad "
    r"D_t = r_t - \ln r_t - 1, \quad r_t = \pi_0 / \pi",
    Branch.OPTIMISATION,
    "Shao et al. 2024, eq. 3 and 4, arXiv:2402.03300; the estimator of KL, Schulman 2020 (k3)",
    (r"\bar \ell_t = \bar L_t \bigl(\beta (1 - r_t) - \rho_t A_t\,[\text{not clipped}]\bigr)", r"", r"", r""),
)
def grpo_token_losses(
    log_probabilities: Float[Array, "*token"],
    old_log_probabilities: Float[Array, "*token"],
    reference_log_probabilities: Float[Array, "*token"],
    advantages: Float[Array, "*token"],
    epsilon: float = 0.2,
    beta: float = 0.04,
    *,
    importance_weighted: bool = False,
) -> Float[Array, "*token"]:
    """Group-relative policy optimisation, each token's share: PPO's loss and a pull to π₀.

    Takes   …log_probabilities   (...)  of the policy, of the one that sampled, of the reference; nats
            advantages           (...)  see `group_advantages`
            epsilon, beta        clip and weight of the KL penalty
            importance_weighted  weight the penalty by ρ, which makes it unbiased after the policy has moved
    Gives   L                    (...)  averaged by `masked_mean` it is the loss
    Raises  ShapeError when the shapes differ
    """
    ratio, advantage, clipped = _ratio_parts(log_probabilities, old_log_probabilities, advantages, epsilon)
    gain = np.minimum(_gain(ratio, advantage), clipped * advantage)
    penalty, _ = _k3(log_probabilities, reference_log_probabilities)
    return beta * (ratio * penalty if importance_weighted else penalty) - gain


@grpo_token_losses.derivative
def grpo_token_losses_backward(
    loss_bar: Float[Array, "*token"],
    log_probabilities: Float[Array, "*token"],
    old_log_probabilities: Float[Array, "*token"],
    reference_log_probabilities: Float[Array, "*token"],
    advantages: Float[Array, "*token"],
    epsilon: float = 0.2,
    beta: float = 0.04,
    *,
    importance_weighted: bool = False,
) -> tuple[Float[Array, "*token"], None, None, None]:
    ratio, advantage, _ = _ratio_parts(log_probabilities, old_log_probabilities, advantages, epsilon)
    penalty, slope = _k3(log_probabilities, reference_log_probabilities)
    penalty_slope = ratio * (penalty + slope) if importance_weighted else slope
    return loss_bar * (beta * penalty_slope - _gain_slope(ratio, advantage, epsilon)), None, None, None


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

    Takes   …log_probabilities   (token,)  of the policy, of the one that sampled, of the reference; nats
            advantages           (token,)  see `group_advantages`
            epsilon, beta        clip and weight of the KL penalty
            importance_weighted  weight the penalty by ρ, which makes it unbiased after the policy has moved
    Gives   J                    ()        to be maximised; its negative is the loss
    Raises  ShapeError when the shapes differ
    """
    losses = grpo_token_losses.function(
        log_probabilities, old_log_probabilities, reference_log_probabilities, advantages, epsilon, beta,
        importance_weighted=importance_weighted,
    )  # fmt: skip
    return -losses.mean()


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
    return grpo_token_losses_backward(
        each, log_probabilities, old_log_probabilities, reference_log_probabilities, advantages, epsilon, beta,
        importance_weighted=importance_weighted,
    )  # fmt: skip


@formula(
    r"k_1 = -\ln r, \quad k_2 = \tfrac12 (\ln r)^2, \quad k_3 = r - 1 - \ln r, \quad r = \pi_0 / \pi",
    Branch.PROBABILITY,
    "Schulman 2020, Approximating KL Divergence, joschu.net/blog/kl-approx.html",
    (r"\bar \ell = \bar k\, (1, \; -\ln r, \; 1 - r)", r""),
)
def kl_estimate(
    log_probabilities: Float[Array, "*token"],
    reference_log_probabilities: Float[Array, "*token"],
    kind: str = "k3",
) -> Float[Array, "*token"]:
    """What each token sampled from the policy says about D(π‖π₀).

    Takes   …log_probabilities  (token,)  of the policy that sampled, and of the reference; nats
            kind                k1 (unbiased, of either sign), k2 (biased, never negative), k3 (both good ones)
    Gives   k                   (token,)  nats; the mean of k1 or k3 is D(π‖π₀)
    Limits  0 where the two agree
    Raises  ShapeError when the shapes differ, DomainError for another kind
    """
    return _estimate(log_probabilities, reference_log_probabilities, kind)[0]


@kl_estimate.derivative
def kl_estimate_backward(
    k_bar: Array, log_probabilities: Array, reference_log_probabilities: Array, kind: str = "k3"
) -> tuple[Array, None]:
    return k_bar * _estimate(log_probabilities, reference_log_probabilities, kind)[1], None


def _ratio_parts(log_p: Array, old: Array, advantages: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """ρ, A, and ρ clipped.

    Raises  ShapeError when the shapes differ, DomainError for a negative ε
    """
    require(epsilon >= 0, f"epsilon is {epsilon}: it is how far a ratio may pay, so it must not be negative")
    log_p, old, advantage = _alike(log_probabilities=log_p, old_log_probabilities=old, advantages=advantages)
    ratio = np.exp(log_p - old)
    return ratio, advantage, np.clip(ratio, 1 - epsilon, 1 + epsilon)


def _gain(ratio: Array, advantage: Array) -> Array:
    """ρ A: nothing where there is no advantage, however large ρ is."""
    return np.where(advantage == 0, 0.0, ratio * advantage)


def _gain_slope(ratio: Array, advantage: Array, epsilon: float) -> Array:
    """Slope of the gain along ln π: ρ A, and 0 where ρ has left the clip on the side to which A pushes."""
    pays = np.where(advantage > 0, ratio <= 1 + epsilon, ratio >= 1 - epsilon)
    return np.where(pays, _gain(ratio, advantage), 0.0)


def _k3(log_p: Array, reference: Array) -> tuple[Array, Array]:
    """r - ln r - 1 with r = π₀/π, at least 0, and its slope along ln π."""
    log_p, reference = _alike(log_probabilities=log_p, reference_log_probabilities=reference)
    gap = reference - log_p
    return np.expm1(gap) - gap, -np.expm1(gap)


def _estimate(log_p: Array, reference: Array, kind: str) -> tuple[Array, Array]:
    """An estimate of the divergence by each token, and its slope along ln π."""
    if kind == "k3":
        return _k3(log_p, reference)
    log_p, reference = _alike(log_probabilities=log_p, reference_log_probabilities=reference)
    gap = log_p - reference
    require(kind in ("k1", "k2"), f"kind is {kind!r}: choose one of k1, k2, k3")
    return (gap, np.ones_like(gap)) if kind == "k1" else (gap * gap / 2, gap)
