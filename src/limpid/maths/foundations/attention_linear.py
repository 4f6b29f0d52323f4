"""Linear attention: weights are products of features, so that keys are added up once."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError, ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.foundations.attention_variants import require_fit
from limpid.maths.operation import Array, Branch


@formula(
    r"o_i = \frac{\phi(q_i)^\top \sum_j \phi(k_j) v_j^\top}{\phi(q_i)^\top \sum_j \phi(k_j)}, \quad "
    r"\phi(x) = \operatorname{elu}(x) + 1",
    Branch.LINEAR_ALGEBRA,
    "Katharopoulos et al. 2020, eq. 5 and 7, arXiv:2006.16236",
    (
        r"\bar{\phi(q)}_i = S_i \bar n_i + z_i \bar d_i",
        r"\bar{\phi(k)}_j = \sum_{i \ge j} \bigl((\bar n_i \cdot v_j) + \bar d_i\bigr) \phi(q_i)",
        r"\bar v_j = \sum_{i \ge j} (\phi(q_i) \cdot \phi(k_j))\, \bar n_i",
    ),
)
def linear_attention(
    query: Float[Array, "query d"],
    key: Float[Array, "query d"],
    value: Float[Array, "query d_value"],
    *,
    causal: bool = False,
) -> Float[Array, "query d_value"]:
    """Attention whose weights are products of features, so that the keys can be added up once: cost linear in length.

    Takes   query, key  (position, d)
            value       (position, d_value)
            causal      sums run only up to each position
    Gives   o           (position, d_value)
    Limits  φ > 0, so that no denominator is 0; only ratios of φ count, so none can vanish or overflow by itself
    Raises  ShapeError when sizes do not fit; DomainError for a causal query all of whose keys vanish beside a later one
    """
    features, _, sums, normal = _linear_parts(query, key, value, causal)
    mixed: Array = (features[:, None, :] @ sums)[:, 0] / (features * normal).sum(-1, keepdims=True)
    return mixed


@linear_attention.derivative
def linear_attention_backward(
    o_bar: Array, query: Array, key: Array, value: Array, *, causal: bool = False
) -> tuple[Array, Array, Array]:
    features, keys, sums, normal = _linear_parts(query, key, value, causal)
    below = (features * normal).sum(-1, keepdims=True)
    o = (features[:, None, :] @ sums)[:, 0] / below
    above_bar, below_bar = o_bar / below, -(o_bar * o).sum(-1, keepdims=True) / below  # o = above / below
    features_bar = (sums @ above_bar[:, :, None])[..., 0] + normal * below_bar
    sums_bar = _sum_over_later(features[:, :, None] * above_bar[:, None, :], causal)
    normal_bar = _sum_over_later(features * below_bar, causal)
    keys_bar = (sums_bar @ floats(value)[:, :, None])[..., 0] + normal_bar
    value_bar = (keys[:, None, :] @ sums_bar)[:, 0]
    slopes = _features(floats(query), -1)[1], _features(floats(key), None)[1]
    return features_bar * slopes[0], keys_bar * slopes[1], value_bar


def _features(x: Array, axis: int | None) -> tuple[Array, Array]:
    """elu(x) + 1 and its slope, positive and smooth at 0, over the power of 2 below the largest along an axis.

    Only ratios of features count, and a power of 2 rounds nothing.
    """
    small, large = np.minimum(x, 0), np.maximum(x, 0) + 1
    halvings = np.floor(small / math.log(2))
    mantissa, power = np.exp(small - halvings * math.log(2)) * large, halvings.astype(np.int64)
    top = (power + np.frexp(mantissa)[1]).max(axis, keepdims=True)
    features = np.ldexp(mantissa, power - top)
    return features, np.where(x > 0, np.ldexp(1.0, -top), features)


def _linear_parts(query: Array, key: Array, value: Array, causal: bool) -> tuple[Array, Array, Array, Array]:
    """φ(q), φ(k), Σ φ(k) vᵀ and Σ φ(k), the sums as each position sees them."""
    query, key, value = floats(query), floats(key), floats(value)
    require_fit(query, key, value)
    if len(query) != len(key):
        raise ShapeError(f"query has shape {query.shape}, key {key.shape}: linear attention needs as many of both")
    features, keys = _features(query, -1)[0], _features(key, None)[0]
    products = keys[:, :, None] * value[:, None, :]
    sums, normal = (
        (products.cumsum(0), keys.cumsum(0)) if causal else (products.sum(0, keepdims=True), keys.sum(0, keepdims=True))
    )
    vanished = (features * normal).sum(-1) == 0
    if vanished.any():
        raise DomainError(
            f"query {int(np.argmax(vanished))} sees only keys whose features vanish beside those of a later key"
        )
    return features, keys, sums, normal


def _sum_over_later(x: Array, causal: bool) -> Array:
    """Over the positions that saw each one: itself and later ones, or all."""
    return x[::-1].cumsum(0)[::-1] if causal else x.sum(0, keepdims=True)
