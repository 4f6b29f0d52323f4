"""Importance ratios: how much likelier an answer has become since it was drawn, and how far that may count."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError
from limpid.maths.alignment.preference import _alike
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch, in_latex, require

LEVELS = ("token", "sequence", "product")
"""token: of each token. sequence: the geometric mean over the answer's tokens. product: of the whole answer."""


@formula(
    r"x_t = m_t (\ell_t - \ell^{old}_t), \quad \text{or of the answer} \quad "
    r"x_t = m_t \tfrac1T \sum_u m_u (\ell_u - \ell^{old}_u)",
    Branch.PROBABILITY,
    "per token, Schulman et al. 2017, eq. 6, arXiv:1707.06347; the mean over the answer, Zheng et al. 2025 (GSPO), "
    "eq. 7, arXiv:2507.18071; its sum, Ahmadian et al. 2024, arXiv:2402.14740",
    (r"\bar \ell_t = m_t \bar x_t, \quad \text{or} \quad m_t \tfrac1T \sum_u m_u \bar x_u", r"", r""),
)
def log_ratios(
    log_probabilities: Float[Array, "answer position"],
    old_log_probabilities: Float[Array, "answer position"],
    mask: Float[Array, "answer position"],
    level: str = "token",
) -> Float[Array, "answer position"]:
    """The logarithm of how much likelier the policy makes an answer than the one that drew it.

    Takes   …log_probabilities  (answer, position)  of the policy, and of the one that drew; nats
            mask                (answer, position)  1 where a token belongs to the answer
            level               token; sequence: the mean over the answer, at each of its tokens; product: the sum
    Gives   x                   (answer, position)  nats; 0 outside the answer
    Limits  0 where the two agree; only `product` is the log-ratio of drawing the answer
    Raises  ShapeError when the shapes differ, DomainError for another level
    """
    log_p, old, mask = _alike(
        log_probabilities=log_probabilities, old_log_probabilities=old_log_probabilities, mask=mask
    )
    return _levelled(mask * (log_p - old), mask, level)


@log_ratios.derivative
def log_ratios_backward(
    x_bar: Array, log_probabilities: Array, old_log_probabilities: Array, mask: Array, level: str = "token"
) -> tuple[Array, None, None]:
    return _levelled(floats(mask) * x_bar, floats(mask), level), None, None


@log_ratios.written
def log_ratios_lines(level: str = "token") -> tuple[str, tuple[str, ...]]:
    if level == "token":
        return r"x_t = m_t (\ell_t - \ell^{old}_t)", (r"\bar \ell_t = m_t \bar x_t", "", "")
    mean = r"\tfrac1T " if level == "sequence" else ""
    return (
        rf"x_t = m_t {mean}\sum_u m_u (\ell_u - \ell^{{old}}_u)",
        (rf"\bar \ell_t = m_t {mean}\sum_u m_u \bar x_u", "", ""),
    )


@formula(
    r"\rho = e^x",
    Branch.PROBABILITY,
    "Schulman et al. 2017, eq. 6, arXiv:1707.06347",
    (r"\bar x = \bar \rho\, \rho",),
)
def importance_ratios(log_ratios: Float[Array, "*token"]) -> Float[Array, "*token"]:
    """How much likelier the policy makes what was drawn.

    Takes   log_ratios  (...)  nats
    Gives   ρ           (...)  1 where nothing has changed
    """
    return np.exp(floats(log_ratios))


@importance_ratios.derivative
def importance_ratios_backward(ratio_bar: Array, log_ratios: Array) -> tuple[Array]:
    return (ratio_bar * np.exp(floats(log_ratios)),)


@formula(
    r"\hat\rho = \min(\rho, 1 + \varepsilon_{high}) \text{ for } A > 0, \quad "
    r"\max(\rho, 1 - \varepsilon) \text{ for } A < 0",
    Branch.OPTIMISATION,
    "Schulman et al. 2017, eq. 7, arXiv:1707.06347; two bounds, Yu et al. 2025 (DAPO), eq. 8, arXiv:2503.14476",
    (r"\bar \rho = \bar{\hat\rho}\, [\hat\rho = \rho]", r""),
)
def clipped_ratios(
    ratios: Float[Array, "*token"],
    advantages: Float[Array, "*token"],
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
) -> Float[Array, "*token"]:
    """The ratio as far as it pays: min(ρ A, clip(ρ) A) = ρ̂ A.

    Takes   ratios        (...)  ρ
            advantages    (...)  A
            epsilon       ε, how far ρ may fall below 1; and rise above it, where nothing else is said
            epsilon_high  how far it may rise
    Gives   ρ̂             (...)
    Limits  beyond the clip on the side to which A pushes, the gradient is exactly 0; the other side is not clipped
    Raises  ShapeError when the shapes differ, DomainError for a negative ε
    """
    ratio, advantage, low, high = _bounds(ratios, advantages, epsilon, epsilon_high)
    return np.where(advantage > 0, np.minimum(ratio, high), np.where(advantage < 0, np.maximum(ratio, low), ratio))


@clipped_ratios.derivative
def clipped_ratios_backward(
    clipped_bar: Array, ratios: Array, advantages: Array, epsilon: float = 0.2, epsilon_high: float | None = None
) -> tuple[Array, None]:
    ratio, advantage, low, high = _bounds(ratios, advantages, epsilon, epsilon_high)
    pays = np.where(advantage > 0, ratio <= high, (ratio >= low) | (advantage == 0))
    return np.where(pays, clipped_bar, 0.0), None


@clipped_ratios.written
def clipped_ratios_lines(epsilon: float = 0.2, epsilon_high: float | None = None) -> tuple[str, tuple[str, ...]]:
    low, high = in_latex(1 - epsilon), in_latex(1 + (epsilon if epsilon_high is None else epsilon_high))
    equation = rf"\hat\rho = \min(\rho, {high}) \text{{ for }} A > 0, \quad \max(\rho, {low}) \text{{ for }} A < 0"
    return equation, clipped_ratios.adjoint


@formula(
    r"\hat\rho = \min(\rho, c)",
    Branch.OPTIMISATION,
    "MiniMax 2025 (CISPO), eq. 5, arXiv:2506.13585, without a lower bound",
    (r"\bar \rho = \bar{\hat\rho}\, [\rho \le c]",),
)
def capped_ratios(ratios: Float[Array, "*token"], cap: float = 5.0) -> Float[Array, "*token"]:
    """A ratio as a weight that no token exceeds.

    Takes   ratios  (...)  ρ
            cap     c, the largest weight
    Gives   ρ̂       (...)
    Raises  DomainError for c ≤ 0
    """
    _require_cap(cap)
    return np.minimum(floats(ratios), cap)


@capped_ratios.derivative
def capped_ratios_backward(capped_bar: Array, ratios: Array, cap: float = 5.0) -> tuple[Array]:
    _require_cap(cap)
    return (np.where(floats(ratios) <= cap, capped_bar, 0.0),)


@capped_ratios.written
def capped_ratios_lines(cap: float = 5.0) -> tuple[str, tuple[str, ...]]:
    shown = in_latex(cap)
    return rf"\hat\rho = \min(\rho, {shown})", (rf"\bar \rho = \bar{{\hat\rho}}\, [\rho \le {shown}]",)


def _levelled(x: Array, mask: Array, level: str) -> Array:
    """Each token's own, or the mean or sum over its answer; this map is its own transpose."""
    if level == "token":
        return x
    if level not in LEVELS:
        raise DomainError(f"level is {level!r}: choose one of {', '.join(LEVELS)}")
    whole = x.sum(-1, keepdims=True)
    if level == "sequence":
        whole = whole / np.maximum(mask.sum(-1, keepdims=True), 1.0)
    return mask * whole


def _bounds(
    ratios: Array, advantages: Array, epsilon: float, epsilon_high: float | None
) -> tuple[Array, Array, float, float]:
    """ρ, A, 1 - ε and 1 + ε_high."""
    high = epsilon if epsilon_high is None else epsilon_high
    for name, value in (("epsilon", epsilon), ("epsilon_high", high)):
        require(value >= 0, f"{name} is {value}: it is how far a ratio may pay, so it must not be negative")
    ratio, advantage = _alike(ratios=ratios, advantages=advantages)
    return ratio, advantage, 1 - epsilon, 1 + high


def _require_cap(cap: float) -> None:
    require(cap > 0, f"cap is {cap}: it is the largest weight, so it must be above 0")
