"""Preferences: losses that teach which of two answers is better, each a function of log-probabilities."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from limpid.errors import ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch, require


def log_sigmoid(x: Array) -> Array:
    """ln σ(x) without overflow."""
    return np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x)))


def sigmoid(x: Array) -> Array:
    return np.exp(log_sigmoid(x))


@formula(
    r"L = -\ln \sigma(r_w - r_l - m) + c\, (r_w + r_l)^2",
    Branch.PROBABILITY,
    "Bradley & Terry 1952, doi:10.2307/2334029; as a loss, Ouyang et al. 2022, eq. 1, arXiv:2203.02155; margin m, "
    "Touvron et al. 2023, eq. 2, arXiv:2307.09288; centring c, Eisenstein et al. 2023, section 2, arXiv:2312.09244",
    (
        r"\bar r_w = \bar L \bigl(2c\,(r_w + r_l) - \sigma(r_l + m - r_w)\bigr)",
        r"\bar r_l = \bar L \bigl(2c\,(r_w + r_l) + \sigma(r_l + m - r_w)\bigr)",
        r"",
    ),
)
def reward_loss(
    chosen: Float[Array, "*pair"],
    rejected: Float[Array, "*pair"],
    margin: Float[Array, "*pair"] | None = None,
    center_rewards_coefficient: float = 0.0,
) -> Float[Array, "*pair"]:
    """How surprised a reward model is that the chosen answer won.

    Takes   chosen, rejected            (pair,)  rewards, nats of log-odds
            margin                      (pair,)  by how much it is to win at least; none is 0
            center_rewards_coefficient  c ≥ 0, what draws rewards to 0; per nat
    Gives   L                           (pair,)  nats; ln 2 for rewards of 0
    Limits  without centring only the difference counts: rewards are known up to a constant
    Raises  ShapeError when the shapes differ, DomainError for c < 0
    """
    require(
        center_rewards_coefficient >= 0,
        f"center_rewards_coefficient is {center_rewards_coefficient}: it must not be negative",
    )
    chosen, rejected = _alike(chosen=chosen, rejected=rejected)
    lead = chosen - rejected - (0.0 if margin is None else _alike(chosen=chosen, margin=margin)[1])
    surprise = -log_sigmoid(lead)
    if not center_rewards_coefficient:  # 0 · ∞ is no number
        return surprise
    return surprise + center_rewards_coefficient * np.square(chosen + rejected)


@reward_loss.derivative
def reward_loss_backward(
    loss_bar: Array,
    chosen: Array,
    rejected: Array,
    margin: Array | None = None,
    center_rewards_coefficient: float = 0.0,
) -> tuple[Array | None, ...]:
    behind = floats(rejected) - floats(chosen) + (0.0 if margin is None else floats(margin))
    pull, centre = loss_bar * sigmoid(behind), 2 * center_rewards_coefficient * loss_bar * (chosen + rejected)
    return (centre - pull, centre + pull) if margin is None else (centre - pull, centre + pull, None)


@formula(
    r"L = -\ln \sigma\Bigl(\beta \bigl(\ln\tfrac{\pi(y_w)}{\pi_0(y_w)} - \ln\tfrac{\pi(y_l)}{\pi_0(y_l)}\bigr)\Bigr)",
    Branch.PROBABILITY,
    "Rafailov et al. 2023, eq. 7, arXiv:2305.18290; smoothing ε, Mitchell 2023",
    (
        r"\bar \ell_w = -\beta \bar L \bigl((1 - \varepsilon) \sigma(-\beta h) - \varepsilon \sigma(\beta h)\bigr)",
        r"\bar \ell_l = -\bar \ell_w",
        r"",
        r"",
    ),
)
def dpo(
    policy_chosen: Float[Array, "*pair"],
    policy_rejected: Float[Array, "*pair"],
    reference_chosen: Float[Array, "*pair"] | None = None,
    reference_rejected: Float[Array, "*pair"] | None = None,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Float[Array, "*pair"]:
    """Direct preference optimisation: the policy is its own reward model.

    Takes   policy_…, reference_…  (pair,)  log-probability of the whole answer, nats; no reference: policy_… alone
            beta                   β, how strongly to stay with the reference; dimensionless
            label_smoothing        ε, how often the label is believed to be wrong
    Gives   L                      (pair,)  nats; ln 2 where policy and reference agree
    Raises  ShapeError when the shapes differ, DomainError for β ≤ 0 or ε outside [0, 1]
    """
    _require_beta(beta)
    require(0 <= label_smoothing <= 1, f"label_smoothing is {label_smoothing}: it is a share, so it lies in [0, 1]")
    h = beta * _margin(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    return -(1 - label_smoothing) * log_sigmoid(h) - label_smoothing * log_sigmoid(-h)


@dpo.derivative
def dpo_backward(
    loss_bar: Array,
    policy_chosen: Array,
    policy_rejected: Array,
    reference_chosen: Array | None = None,
    reference_rejected: Array | None = None,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> tuple[Array | None, ...]:
    h = beta * _margin(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    pull = beta * loss_bar * ((1 - label_smoothing) * sigmoid(-h) - label_smoothing * sigmoid(h))
    return _of_pair(-pull, reference_chosen)


@formula(
    r"L = \frac{-(1 - \varepsilon) \ln \sigma(\beta h) + \varepsilon \ln \sigma(-\beta h)}{1 - 2 \varepsilon}, \quad "
    r"h = \ln\tfrac{\pi(y_w)}{\pi_0(y_w)} - \ln\tfrac{\pi(y_l)}{\pi_0(y_l)}",
    Branch.PROBABILITY,
    "Chowdhury, Kini & Natarajan 2024, section 3, arXiv:2403.00409",
    (
        r"\bar \ell_w = -\beta \bar L \frac{(1 - \varepsilon) \sigma(-\beta h) + \varepsilon \sigma(\beta h)}"
        r"{1 - 2 \varepsilon}",
        r"\bar \ell_l = -\bar \ell_w",
        r"",
        r"",
    ),
)
def robust_preference(
    policy_chosen: Float[Array, "*pair"],
    policy_rejected: Float[Array, "*pair"],
    reference_chosen: Float[Array, "*pair"] | None = None,
    reference_rejected: Float[Array, "*pair"] | None = None,
    beta: float = 0.1,
    label_smoothing: float = 0.1,
) -> Float[Array, "*pair"]:
    """DPO's loss without bias where a share ε of the labels was flipped: its mean over flips is that of clean labels.

    Takes   policy_…, reference_…  (pair,)  log-probability of the whole answer, nats
            label_smoothing        ε, the share of flipped labels, below 1/2
    Gives   L                      (pair,)  nats; ln 2 where policy and reference agree, and below 0 beyond
    Limits  ε = 0 is DPO
    Raises  ShapeError when the shapes differ, DomainError for β ≤ 0 or ε outside [0, 1/2)
    """
    _require_beta(beta)
    require(0 <= label_smoothing < 0.5, f"label_smoothing is {label_smoothing}: of flipped labels less than half")
    h = beta * _margin(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    return (label_smoothing * log_sigmoid(-h) - (1 - label_smoothing) * log_sigmoid(h)) / (1 - 2 * label_smoothing)


@robust_preference.derivative
def robust_preference_backward(
    loss_bar: Array,
    policy_chosen: Array,
    policy_rejected: Array,
    reference_chosen: Array | None = None,
    reference_rejected: Array | None = None,
    beta: float = 0.1,
    label_smoothing: float = 0.1,
) -> tuple[Array | None, ...]:
    h = beta * _margin(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    pull = beta * loss_bar * ((1 - label_smoothing) * sigmoid(-h) + label_smoothing * sigmoid(h))
    return _of_pair(-pull / (1 - 2 * label_smoothing), reference_chosen)


@formula(
    r"\hat r(y) = \beta \ln \frac{\pi(y)}{\pi_0(y)}",
    Branch.PROBABILITY,
    "Rafailov et al. 2023, section 4, arXiv:2305.18290",
    (r"\bar \ell = \beta\, \bar r", r""),
)
def implicit_reward(
    policy: Float[Array, "*answer"], reference: Float[Array, "*answer"], beta: float = 0.1
) -> Float[Array, "*answer"]:
    """The reward for which a policy is the best possible one, up to a constant per prompt.

    Takes   policy, reference  (answer,)  log-probability of the whole answer, nats
    Gives   r                  (answer,)
    Raises  ShapeError when the shapes differ, DomainError for β ≤ 0
    """
    _require_beta(beta)
    return beta * np.subtract(*_alike(policy=policy, reference=reference))


@implicit_reward.derivative
def implicit_reward_backward(r_bar: Array, policy: Array, reference: Array, beta: float = 0.1) -> tuple[Array, None]:
    return beta * r_bar * np.ones_like(floats(policy)), None


@formula(
    r"L = \Bigl(h - \frac{1}{2\beta}\Bigr)^2, \quad "
    r"h = \ln\tfrac{\pi(y_w)}{\pi_0(y_w)} - \ln\tfrac{\pi(y_l)}{\pi_0(y_l)}",
    Branch.PROBABILITY,
    "Azar et al. 2023, eq. 17, arXiv:2310.12036",
    (r"\bar \ell_w = 2 \bar L (h - \tfrac{1}{2\beta})", r"\bar \ell_l = -\bar \ell_w", r"", r""),
)
def ipo(
    policy_chosen: Float[Array, "*pair"],
    policy_rejected: Float[Array, "*pair"],
    reference_chosen: Float[Array, "*pair"] | None = None,
    reference_rejected: Float[Array, "*pair"] | None = None,
    beta: float = 0.1,
) -> Float[Array, "*pair"]:
    """Identity preference optimisation: the margin is pulled to 1/(2β), not beyond, so that sure labels cannot overfit.

    Takes   policy_…, reference_…  (pair,)  log-probability of the answer, nats (per token in some implementations)
            beta                   β above 0
    Gives   L                      (pair,)  nats²
    Raises  ShapeError when the shapes differ, DomainError for β ≤ 0
    """
    _require_beta(beta)
    return np.square(_margin(policy_chosen, policy_rejected, reference_chosen, reference_rejected) - 1 / (2 * beta))


@ipo.derivative
def ipo_backward(
    loss_bar: Array,
    policy_chosen: Array,
    policy_rejected: Array,
    reference_chosen: Array | None = None,
    reference_rejected: Array | None = None,
    beta: float = 0.1,
) -> tuple[Array | None, ...]:
    h = _margin(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    pull = 2 * loss_bar * (h - 1 / (2 * beta))
    return _of_pair(pull, reference_chosen)


@formula(
    r"L = \max(0, 1 - \beta h), \quad h = \ln\tfrac{\pi(y_w)}{\pi_0(y_w)} - \ln\tfrac{\pi(y_l)}{\pi_0(y_l)}",
    Branch.PROBABILITY,
    "Liu et al. 2023 (RSO), eq. 10, arXiv:2309.06657; after Zhao et al. 2023 (SLiC-HF), eq. 1, arXiv:2305.10425",
    (r"\bar \ell_w = -\beta \bar L\,[\beta h < 1]", r"\bar \ell_l = -\bar \ell_w", r"", r""),
)
def hinge_preference(
    policy_chosen: Float[Array, "*pair"],
    policy_rejected: Float[Array, "*pair"],
    reference_chosen: Float[Array, "*pair"] | None = None,
    reference_rejected: Float[Array, "*pair"] | None = None,
    beta: float = 0.1,
) -> Float[Array, "*pair"]:
    """Preference with a margin: what is right by 1/β teaches nothing more.

    Takes   policy_…, reference_…  (pair,)  log-probability of the whole answer, nats
            beta                   β, above 0; 1/β is the margin
    Gives   L                      (pair,)  1 where policy and reference agree
    Limits  the gradient is exactly 0 beyond the margin
    Raises  ShapeError when the shapes differ, DomainError for β ≤ 0
    """
    _require_beta(beta)
    margin = _margin(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    return np.maximum(0.0, 1 - beta * margin)


@hinge_preference.derivative
def hinge_preference_backward(
    loss_bar: Array,
    policy_chosen: Array,
    policy_rejected: Array,
    reference_chosen: Array | None = None,
    reference_rejected: Array | None = None,
    beta: float = 0.1,
) -> tuple[Array | None, ...]:
    h = beta * _margin(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    pull = np.where(h < 1, beta * loss_bar, 0.0)
    return _of_pair(-pull, reference_chosen)


@formula(
    r"L = \lambda_y (1 - v), \quad v = \sigma(\pm \beta (r - z_0)), \quad r = \ln \tfrac{\pi(y)}{\pi_0(y)}",
    Branch.PROBABILITY,
    "Ethayarajh et al. 2024, eq. 7 and 8, arXiv:2402.01306",
    (r"\bar \ell = \mp \lambda_y \beta \bar L\, v (1 - v)", r"", r"", r""),
)
def kto(
    policy: Float[Array, "*answer"],
    reference: Float[Array, "*answer"],
    desirable: Bool[Array, "*answer"],
    baseline: Float[Array, "*answer"] | float = 0.0,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Float[Array, "*answer"]:
    """Kahneman–Tversky optimisation: answers judged one at a time, good or bad, against a reference point.

    Takes   policy, reference  (answer,)  log-probability of the answer, nats
            desirable          (answer,)  whether it was judged good
            baseline           (answer,)  z₀ ≥ 0, estimate of KL(π‖π₀), nats, or one for all; it has no gradient
            …_weight           λ of good and of bad answers
    Gives   L                  (answer,)  between 0 and λ
    Raises  ShapeError when the shapes differ, DomainError for β ≤ 0, z₀ < 0 or a negative weight
    """
    _require_beta(beta)
    least = np.min(baseline, initial=0.0)
    require(bool(least >= 0), f"baseline is {least:g}: it estimates a divergence, so it is at least 0")
    for name, weight_of in (("desirable_weight", desirable_weight), ("undesirable_weight", undesirable_weight)):
        require(weight_of >= 0, f"{name} is {weight_of}: it must not be negative")
    weight, value, _ = _kto_parts(policy, reference, desirable, baseline, beta, desirable_weight, undesirable_weight)
    return weight * (1 - value)


@kto.derivative
def kto_backward(
    loss_bar: Array,
    policy: Array,
    reference: Array,
    desirable: Array,
    baseline: Array | float = 0.0,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> tuple[Array | None, ...]:
    weight, value, sign = _kto_parts(policy, reference, desirable, baseline, beta, desirable_weight, undesirable_weight)
    bar = -loss_bar * sign * beta * weight * value * (1 - value)
    return (bar, None, None) if np.ndim(baseline) == 0 else (bar, None, None, None)


def _require_beta(beta: float) -> None:
    require(beta > 0, f"beta is {beta}: it must be above 0")


def _kto_parts(
    policy: Array, reference: Array, desirable: Array, baseline: Array | float, beta: float, good: float, bad: float
) -> tuple[Array, Array, Array]:
    policy, reference, judged = _alike(policy=policy, reference=reference, desirable=desirable)
    sign = np.where(judged > 0, 1.0, -1.0)
    return np.where(judged > 0, good, bad), sigmoid(sign * beta * (policy - reference - baseline)), sign


def _of_pair(pull: Array, reference: Array | None) -> tuple[Array | None, ...]:
    """The gradient of a function of the margin, given that of the chosen answer; references have none."""
    return (pull, -pull) if reference is None else (pull, -pull, None, None)


def _margin(
    policy_chosen: Array, policy_rejected: Array, reference_chosen: Array | None, reference_rejected: Array | None
) -> Array:
    """How much more than the reference the policy prefers what was chosen, nats; without one, how much more."""
    if reference_chosen is None or reference_rejected is None:
        return np.subtract(*_alike(policy_chosen=policy_chosen, policy_rejected=policy_rejected))
    chosen, rejected, before_chosen, before_rejected = _alike(
        policy_chosen=policy_chosen,
        policy_rejected=policy_rejected,
        reference_chosen=reference_chosen,
        reference_rejected=reference_rejected,
    )
    margin: Array = (chosen - before_chosen) - (rejected - before_rejected)
    return margin


def _alike(**arrays: Array) -> list[Array]:
    """All of one shape, as float64."""
    alike = {name: floats(array) for name, array in arrays.items()}
    first, *others = alike.items()
    for name, array in others:
        if array.shape != first[1].shape:
            raise ShapeError(f"{first[0]} has shape {first[1].shape}, {name} {array.shape}: one entry per answer")
    return list(alike.values())
