"""A reward model: one number for a whole answer, read off the hidden state of its last token."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from limpid.errors import ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch, require_shape


@formula(
    r"y_a = x_{a,\, t_a}",
    Branch.LINEAR_ALGEBRA,
    "Ouyang et al. 2022, section 3.5, arXiv:2203.02155",
    (r"\bar x_{a,t} = \bar y_a\, [t = t_a]", r""),
)
def at_position(
    x: Float[Array, "answer position d_model"], place: Int[Array, " answer"]
) -> Float[Array, "answer d_model"]:
    """Of each answer the vector at one position, such as that of its last token, which has seen all others.

    Takes   x      (answer, position, d_model)
            place  (answer,)           from 0
    Gives   y      (answer, d_model)
    Raises  ShapeError for a position that is not there
    """
    x, place = floats(x), np.asarray(place)
    require_shape("place", place, x.shape[:1], "one position per answer")
    if place.size and not 0 <= place.min() <= place.max() < x.shape[1]:
        raise ShapeError(f"place names position {place.max()} of {x.shape[1]}: they are counted from 0")
    return x[np.arange(len(x)), place]


@at_position.derivative
def at_position_backward(y_bar: Array, x: Array, place: Array) -> tuple[Array, None]:
    bar = np.zeros(np.shape(x))
    bar[np.arange(len(bar)), place] = y_bar
    return bar, None


@formula(
    r"r = \sum_j w_j x_j",
    Branch.LINEAR_ALGEBRA,
    "Ziegler et al. 2019, section 2.1, arXiv:1909.08593",
    (r"\bar x_j = \bar r\, w_j", r"\bar w_j = \sum \bar r\, x_j"),
)
def score(x: Float[Array, "*batch d_model"], weight: Float[Array, "one d_model"]) -> Float[Array, "*batch"]:
    """One number of a hidden state, by a linear function: the reward of an answer, or the value of its beginning.

    Takes   x       (…, d_model)
            weight  (1, d_model)  learned
    Gives   r       (…)           of a reward model, nats of log-odds up to a constant; of a value, the reward's unit
    Raises  ShapeError when the weight has another width than x
    """
    require_shape("weight", np.asarray(weight), (1, np.shape(x)[-1]), "one row as wide as x")
    return floats(x) @ floats(weight)[0]


@score.derivative
def score_backward(r_bar: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    rows = floats(x).reshape(-1, np.shape(x)[-1])
    return floats(r_bar)[..., None] * floats(weight)[0], (floats(r_bar).reshape(-1) @ rows)[None]
