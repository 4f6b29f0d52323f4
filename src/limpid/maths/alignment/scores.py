"""What answers of a pair score before their scores are compared: by another divergence, or per token."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float

from limpid.maths.alignment.preference import _alike, sigmoid
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch, require_shape

FDivergence = Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"]
LARGEST_EXPONENT = 80.0
"""Exponents are held at it: e⁸⁰ and its square root's inverse are numbers in float32, as in TRL."""


@formula(
    r"s = f'\!\left(\tfrac{\pi(y)}{\pi_0(y)}\right) - f'(1), \quad f'(t) = \ln t,\; -\tfrac1t,\; "
    r"\ln\tfrac{2t}{1 + t},\; \tfrac{t^{\alpha - 1}}{\alpha - 1}",
    Branch.PROBABILITY,
    "Wang et al. 2023, table 1, arXiv:2309.16240: reverse KL, forward KL, Jensen-Shannon, α",
    (r"\bar \ell = \bar s\, \bigl(1,\; \tfrac1t,\; \tfrac{1}{1 + t},\; t^{\alpha - 1}\bigr)", r""),
)
def divergence_score(
    policy: Float[Array, "*answer"],
    reference: Float[Array, "*answer"],
    f_divergence_type: FDivergence = "reverse_kl",
    f_alpha_divergence_coef: float = 0.5,
) -> Float[Array, "*answer"]:
    """How far an answer's probability was raised above the reference, as the divergence that holds it back counts.

    Takes   policy, reference        (answer,)  log-probability of the whole answer, nats
            f_divergence_type        which f; reverse KL is DPO's
            f_alpha_divergence_coef  α; at 1 it is reverse KL
    Gives   s                        (answer,)  0 where policy and reference agree
    Limits  near t = 1 all of them are ln t
    Raises  ShapeError when the shapes differ
    """
    log_t = np.subtract(*_alike(policy=policy, reference=reference))
    match f_divergence_type:
        case "forward_kl":
            return -np.expm1(np.minimum(-log_t, LARGEST_EXPONENT))
        case "js_divergence":
            return np.minimum(log_t, 0.0) - np.log1p(np.expm1(-np.abs(log_t)) / 2)
        case "alpha_divergence" if not is_reverse_kl(f_alpha_divergence_coef):
            power = f_alpha_divergence_coef - 1
            return np.expm1(np.minimum(power * log_t, LARGEST_EXPONENT)) / power
    return log_t


@divergence_score.derivative
def divergence_score_backward(
    score_bar: Array,
    policy: Array,
    reference: Array,
    f_divergence_type: FDivergence = "reverse_kl",
    f_alpha_divergence_coef: float = 0.5,
) -> tuple[Array, None]:
    log_t = floats(policy) - floats(reference)
    slope = np.ones_like(log_t)
    match f_divergence_type:
        case "forward_kl":
            slope = np.where(-log_t < LARGEST_EXPONENT, np.exp(-log_t), 0.0)
        case "js_divergence":
            slope = sigmoid(-log_t)
        case "alpha_divergence" if not is_reverse_kl(f_alpha_divergence_coef):
            power = (f_alpha_divergence_coef - 1) * log_t
            slope = np.where(power < LARGEST_EXPONENT, np.exp(power), 0.0)
    return score_bar * slope, None


def is_reverse_kl(alpha: float) -> bool:
    """Whether the α-divergence is taken at its limit, as TRL takes it."""
    return abs(alpha - 1) < 1e-6


@formula(
    r"y_j = \frac{x_j}{\max(1, \sum_t m_{jp + k,\, t})}",
    Branch.PROBABILITY,
    "Meng et al. 2024, eq. 3, arXiv:2405.14734",
    (r"\bar x_j = \frac{\bar y_j}{\max(1, \sum_t m_{jp + k,\, t})}", r""),
)
def per_token(
    x: Float[Array, " share"], mask: Float[Array, "answer position"], start: int = 0, step: int = 2
) -> Float[Array, " share"]:
    """What belongs to every p-th answer, from the k-th on, divided by the answer's tokens.

    Takes   x      (answer / step,)    such as a score of the whole answer, nats
            mask   (answer, position)  1 where a token belongs to the answer, 0 in prompt and padding
            start  k, from 0
            step   p
    Gives   y      (answer / step,)    the same per token
    Limits  an answer without tokens counts as one of one token: its score is 0 either way
    Raises  ShapeError when the shapes do not fit
    """
    return floats(x) / _tokens(x, mask, start, step)


@per_token.derivative
def per_token_backward(y_bar: Array, x: Array, mask: Array, start: int = 0, step: int = 2) -> tuple[Array, None]:
    return y_bar / _tokens(x, mask, start, step), None


def _tokens(x: Array, mask: Array, start: int, step: int) -> Array:
    tokens = floats(mask)[start::step].sum(-1)
    require_shape("x", np.asarray(x), tokens.shape, f"one entry for every {step} answers")
    return np.maximum(tokens, 1.0)
