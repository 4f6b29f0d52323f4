"""Estimates of KL(π‖π₀) from the tokens that were drawn: what each says, and where its gradient leads."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from limpid.maths.alignment.preference import _alike
from limpid.maths.formula import formula
from limpid.maths.operation import Array, Branch, require


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
    """What each token sampled from the policy says about KL(π‖π₀).

    A good value and a good gradient are two things. Minimised over tokens that π itself drew, k1 pulls nowhere (its
    mean gradient is 0), k2 along ∇KL(π‖π₀), and k3 along ∇KL(π₀‖π), the other direction.

    Takes   …log_probabilities  (token,)  of the policy that sampled, and of the reference; nats
            kind                k1 (unbiased, of either sign), k2 (biased, at least 0), k3 (unbiased, at least 0)
    Gives   k                   (token,)  nats; the mean of k1 or k3 is KL(π‖π₀)
    Limits  0 where the two agree
    Raises  ShapeError when the shapes differ, DomainError for another kind
    """
    return _estimate(log_probabilities, reference_log_probabilities, kind)[0]


@kl_estimate.derivative
def kl_estimate_backward(
    k_bar: Array, log_probabilities: Array, reference_log_probabilities: Array, kind: str = "k3"
) -> tuple[Array, None]:
    return k_bar * _estimate(log_probabilities, reference_log_probabilities, kind)[1], None


@kl_estimate.written
def kl_estimate_lines(kind: str = "k3") -> tuple[str, tuple[str, ...]]:
    equation, slope = {
        "k1": (r"k_1 = \ell - \ell^0", ""),
        "k2": (r"k_2 = \tfrac12 (\ell - \ell^0)^2", r"\, (\ell - \ell^0)"),
        "k3": (r"k_3 = r - 1 - \ln r, \quad r = e^{\ell^0 - \ell}", r"\, (1 - r)"),
    }[kind]
    return equation, (rf"\bar \ell = \bar k{slope}", "")


@formula(
    r"k = \rho\, (r - 1 - \ln r), \quad r = \pi_0 / \pi",
    Branch.PROBABILITY,
    "DeepSeek-AI 2025 (V3.2), section 3.1, arXiv:2512.02556; as `use_bias_correction_kl` in TRL",
    (r"\bar \ell = \bar k\, \rho\, (1 - r)", r"", r"\bar \rho = \bar k\, (r - 1 - \ln r)"),
)
def weighted_kl_estimate(
    log_probabilities: Float[Array, "*token"],
    reference_log_probabilities: Float[Array, "*token"],
    ratios: Float[Array, "*token"],
) -> Float[Array, "*token"]:
    """k3 times the ratio to the policy that drew, through which a gradient flows as well.

    On policy its value is k3, and its mean gradient ∇KL(π‖π₀) of the next token, where that of k3 alone is
    ∇KL(π₀‖π). With the ratio of the whole answer it is that of the answers' distribution, on policy and off.

    Takes   …log_probabilities  (token,)  of the policy, and of the reference; nats
            ratios              (token,)  ρ
    Gives   k                   (token,)  nats
    Limits  0 where policy and reference agree
    Raises  ShapeError when the shapes differ
    """
    (value, _), ratio = _k3(log_probabilities, reference_log_probabilities), _alike(ratios=ratios)[0]
    return ratio * value


@weighted_kl_estimate.derivative
def weighted_kl_estimate_backward(
    k_bar: Array, log_probabilities: Array, reference_log_probabilities: Array, ratios: Array
) -> tuple[Array, None, Array]:
    value, slope = _k3(log_probabilities, reference_log_probabilities)
    return k_bar * ratios * slope, None, k_bar * value


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
