"""A value function: what is expected of an answer from each of its tokens on, and what it loses by being wrong."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from limpid.maths.alignment.preference import _alike
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch, in_latex, require


@formula(
    r"\hat V = \operatorname{clip}(V, V_{old} - c, V_{old} + c) \text{ where that is farther from } R, \quad "
    r"V \text{ elsewhere}",
    Branch.OPTIMISATION,
    "as in OpenAI baselines (ppo2) and TRL; the ablation, Engstrom et al. 2020, section 3, arXiv:2005.12729",
    (r"\bar V = \bar{\hat V}\, [\hat V = V]", r"", r""),
)
def clipped_values(
    values: Float[Array, "*token"],
    old_values: Float[Array, "*token"],
    returns: Float[Array, "*token"],
    cliprange_value: float = 0.2,
) -> Float[Array, "*token"]:
    """The value as far as it pays: of V and V clipped to where it was, the one that loses more.

    Takes   values           (...)  V
            old_values       (...)  V before the first step on these answers
            returns          (...)  R, what V is to be
            cliprange_value  c, how far V may move on one draw, in the unit of the rewards
    Gives   V̂                (...)
    Limits  V that has moved towards R by more than c learns nothing; away from R, or past it, it does
    Raises  ShapeError when the shapes differ, DomainError for a negative c
    """
    value, clipped, goal = _clipped(values, old_values, returns, cliprange_value)
    return np.where(_held(value, clipped, goal), clipped, value)


@clipped_values.derivative
def clipped_values_backward(
    clipped_bar: Array, values: Array, old_values: Array, returns: Array, cliprange_value: float = 0.2
) -> tuple[Array, None, None]:
    return np.where(_held(*_clipped(values, old_values, returns, cliprange_value)), 0.0, clipped_bar), None, None


@clipped_values.written
def clipped_values_lines(cliprange_value: float = 0.2) -> tuple[str, tuple[str, ...]]:
    range_ = in_latex(cliprange_value)
    equation = (
        rf"\hat V = \operatorname{{clip}}(V, V_{{old}} - {range_}, V_{{old}} + {range_}) "
        r"\text{ where that is farther from } R, \quad V \text{ elsewhere}"
    )
    return equation, clipped_values.adjoint


@formula(
    r"L = \tfrac12 (\hat V - R)^2",
    Branch.OPTIMISATION,
    "Schulman et al. 2017, eq. 9, arXiv:1707.06347, with the half that TRL has",
    (r"\bar{\hat V} = \bar L\, (\hat V - R)", r""),
)
def value_losses(values: Float[Array, "*token"], returns: Float[Array, "*token"]) -> Float[Array, "*token"]:
    """How wrong the value before each token was.

    Takes   values   (...)  V̂, clipped or not
            returns  (...)  R
    Gives   L        (...)  in the square of the rewards' unit
    Limits  smallest where V is the mean of R over all that may follow
    Raises  ShapeError when the shapes differ
    """
    value, goal = _alike(values=values, returns=returns)
    return np.square(value - goal) / 2


@value_losses.derivative
def value_losses_backward(loss_bar: Array, values: Array, returns: Array) -> tuple[Array, None]:
    return loss_bar * (floats(values) - floats(returns)), None


@formula(
    r"L = L^{\pi} + c_v L^V",
    Branch.OPTIMISATION,
    "Schulman et al. 2017, eq. 9, arXiv:1707.06347",
    (r"\bar L^{\pi} = \bar L", r"\bar L^V = c_v \bar L"),
)
def actor_critic_loss(
    policy_loss: Float[Array, ""], value_loss: Float[Array, ""], vf_coef: float = 0.1
) -> Float[Array, ""]:
    """One loss for a policy and a value function that share a model.

    Takes   policy_loss, value_loss  ()  each over all tokens of a step
            vf_coef                  c_v, what the value function weighs
    Gives   L                        ()
    Raises  ShapeError when the shapes differ
    """
    policy, value = _alike(policy_loss=policy_loss, value_loss=value_loss)
    return policy + vf_coef * value


@actor_critic_loss.derivative
def actor_critic_loss_backward(
    loss_bar: Array, policy_loss: Array, value_loss: Array, vf_coef: float = 0.1
) -> tuple[Array, Array]:
    return loss_bar, vf_coef * loss_bar


@actor_critic_loss.written
def actor_critic_loss_lines(vf_coef: float = 0.1) -> tuple[str, tuple[str, ...]]:
    shown = in_latex(vf_coef)
    return rf"L = L^{{\pi}} + {shown}\, L^V", (r"\bar L^{\pi} = \bar L", rf"\bar L^V = {shown}\, \bar L")


def _clipped(values: Array, old_values: Array, returns: Array, cliprange_value: float) -> tuple[Array, Array, Array]:
    """V, V near V_old, and R."""
    require(
        cliprange_value >= 0,
        f"cliprange_value is {cliprange_value}: it is how far a value may move, so it must not be negative",
    )
    value, old, goal = _alike(values=values, old_values=old_values, returns=returns)
    return value, np.clip(value, old - cliprange_value, old + cliprange_value), goal


def _held(value: Array, clipped: Array, goal: Array) -> Array:
    """Where the clipped value loses more, so that nothing is learned."""
    held: Array = np.abs(clipped - goal) > np.abs(value - goal)
    return held
