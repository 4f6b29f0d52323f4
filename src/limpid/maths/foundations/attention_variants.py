"""Attention as one function: full, causal, windowed, with shared heads."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError, ShapeError
from limpid.maths.attention import CausalSoftmax
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch


@formula(
    r"O = \operatorname{softmax}\Bigl(\frac{Q K^\top}{\sqrt d} + M\Bigr) V",
    Branch.PROBABILITY,
    "Vaswani et al. 2017, eq. 1, arXiv:1706.03762; shared heads, Shazeer 2019, arXiv:1911.02150 and Ainslie et al. "
    "2023, arXiv:2305.13245; window, Beltagy et al. 2020, arXiv:2004.05150",
    (
        r"\bar Q = \tfrac{1}{\sqrt d} \bar S K",
        r"\bar K = \tfrac{1}{\sqrt d} \bar S^\top Q",
        r"\bar V = W^\top \bar O, \quad \bar S = W \odot (\bar W - (\bar W \odot W) 1), \quad \bar W = \bar O V^\top",
    ),
)
def attention(
    query: Float[Array, "*head query d"],
    key: Float[Array, "*kv_head key d"],
    value: Float[Array, "*kv_head key d_value"],
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    mask: Array | None = None,
) -> Float[Array, "*head query d_value"]:
    """Give each query the mean of the values, weighted by how well it meets their keys.

    Takes   query   (head, query, d), or (query, d)
            key     (kv_head, key, d); as many heads as queries (multi-head), one (multi-query), or a divisor (grouped)
            value   (kv_head, key, d_value)
            causal  a query sees only keys up to its own position; the last query stands at the last key
            window  positions seen on each side that is seen, its own included
            scale   of the scores; 1/√d when left out, which keeps their variance at 1
            mask    (query, key)  true where a query may look; or numbers added to the scores, -∞ to hide
    Gives   (head, query, d_value)
    Limits  keys that are all alike give the plain mean
    Raises  ShapeError when sizes do not fit, DomainError for a query that sees no key, or a mask of integers
    """
    weights, value = _weights(query, key, value, causal, window, scale, mask)[0], floats(value)
    mixed: Array = weights @ _repeated(value, weights)
    return mixed


@attention.derivative
def attention_backward(
    o_bar: Array,
    query: Array,
    key: Array,
    value: Array,
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    mask: Array | None = None,
) -> tuple[Array, Array, Array]:
    weights, scale = _weights(query, key, value, causal, window, scale, mask)
    query, key, value = floats(query), floats(key), floats(value)
    w_bar = o_bar @ _repeated(value, weights).swapaxes(-1, -2)
    s_bar = scale * weights * (w_bar - (w_bar * weights).sum(-1, keepdims=True))
    value_bar, key_bar = weights.swapaxes(-1, -2) @ o_bar, s_bar.swapaxes(-1, -2) @ query
    return s_bar @ _repeated(key, weights), _gathered(key_bar, key), _gathered(value_bar, value)


@formula(
    r"w_{ij} = \operatorname{softmax}_j (q_i \cdot k_j / \sqrt d)",
    Branch.PROBABILITY,
    "Vaswani et al. 2017, eq. 1, arXiv:1706.03762",
)
def attention_weights(
    query: Float[Array, "*head query d"],
    key: Float[Array, "*kv_head key d"],
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    mask: Array | None = None,
) -> Float[Array, "*head query key"]:
    """How much each query attends to each key.

    Takes   query, key, causal, window, scale, mask  as `attention` does
    Gives   (head, query, key)  each row sums to 1; what is hidden gets exactly 0
    """
    return _weights(query, key, key, causal, window, scale, mask)[0]


@formula(
    r"h_i = \operatorname{attention}(x W_i^Q, x W_i^K, x W_i^V), \quad y = \operatorname{concat}(h_1, \dots, h_H) W^O",
    Branch.LINEAR_ALGEBRA,
    "Vaswani et al. 2017, section 3.2.2, arXiv:1706.03762",
    (
        r"\bar x = \bar Q W^Q + \bar K W^K + \bar V W^V",
        r"\bar W^Q = \bar Q^\top x",
        r"\bar W^K = \bar K^\top x",
        r"\bar W^V = \bar V^\top x",
        r"\bar W^O = \bar y^\top \operatorname{concat}(h_1, \dots, h_H)",
    ),
)
def multi_head_attention(
    x: Float[Array, "position d_model"],
    w_query: Float[Array, "d_query d_model"],
    w_key: Float[Array, "d_key d_model"],
    w_value: Float[Array, "d_key d_model"],
    w_output: Float[Array, "d_model d_query"],
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    causal: bool = True,
    window: int | None = None,
) -> Float[Array, "position d_model"]:
    """Several attentions side by side, each on its own projection of x, and one map of what they found.

    Takes   x             (position, d_model)
            w_query …     (d_out, d_in), as PyTorch keeps them
            num_heads     of queries
            num_kv_heads  of keys and values; fewer are shared (grouped), 1 by all (multi-query)
    Gives   y             (position, d_model)
    Raises  ShapeError when heads do not divide the projections or one another
    """
    x = floats(x)
    query, key, value = _projected(x, w_query, w_key, w_value, num_heads, num_kv_heads or num_heads)
    mixed = attention(query, key, value, causal=causal, window=window)
    y: Array = _joined(mixed) @ floats(w_output).T
    return y


@multi_head_attention.derivative
def multi_head_attention_backward(
    y_bar: Array,
    x: Array,
    w_query: Array,
    w_key: Array,
    w_value: Array,
    w_output: Array,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    causal: bool = True,
    window: int | None = None,
) -> tuple[Array, ...]:
    x = floats(x)
    heads = _projected(x, w_query, w_key, w_value, num_heads, num_kv_heads or num_heads)
    mixed = attention(*heads, causal=causal, window=window)
    mixed_bar = _in_heads(y_bar @ floats(w_output), num_heads)
    bars = [_joined(bar) for bar in attention_backward(mixed_bar, *heads, causal=causal, window=window)]
    x_bar = sum(bar @ floats(weight) for bar, weight in zip(bars, (w_query, w_key, w_value), strict=True))
    return x_bar, *(bar.T @ x for bar in bars), y_bar.T @ _joined(mixed)


def _weights(
    query: Array, key: Array, value: Array, causal: bool, window: int | None, scale: float | None, mask: Array | None
) -> tuple[Array, float]:
    query, key, value = floats(query), floats(key), floats(value)
    require_fit(query, key, value)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = scale * (query @ _repeated(key, query).swapaxes(-1, -2))
    visible = np.ones(scores.shape[-2:], dtype=bool)
    if causal or window is not None:
        visible = CausalSoftmax(window, causal).visible(*scores.shape[-2:])
    if mask is not None:
        mask = _checked_mask(mask, scores)
        visible = visible & mask if mask.dtype == bool else visible & ~np.isneginf(mask)
        scores = scores if mask.dtype == bool else scores + np.where(np.isneginf(mask), 0.0, mask)
    blind = ~np.broadcast_to(visible, scores.shape).any(-1)
    if blind.any():
        raise DomainError(f"query {tuple(int(i) for i in np.argwhere(blind)[0])} sees no key: a mean needs one")
    shifted = np.where(visible, scores, -np.inf)
    weights = np.exp(shifted - shifted.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True), scale


def _checked_mask(mask: Array, scores: Array) -> Array:
    """Truth values, or numbers to be added to the scores; integers could mean either."""
    mask = np.asarray(mask)
    if mask.dtype.kind not in "bf":
        raise DomainError(f"the mask holds {mask.dtype}: give truth values, or floats that are added to the scores")
    try:
        np.broadcast_to(mask, scores.shape)
    except ValueError as error:
        raise ShapeError(f"the mask has shape {mask.shape}, the scores {scores.shape}: one entry per score") from error
    return mask


def require_fit(query: Array, key: Array, value: Array) -> None:
    """A ShapeError where queries, keys and values do not belong together."""
    fit = query.ndim == key.ndim == value.ndim >= 2 and query.shape[-1] == key.shape[-1]
    fit = fit and key.shape[:-1] == value.shape[:-1] and key.shape[-2] > 0
    if not fit or (query.ndim > 2 and query.shape[-3] % key.shape[-3]):
        raise ShapeError(
            f"query has shape {query.shape}, key {key.shape}, value {value.shape}: query and key need one width, key "
            "and value one length, and every key head serves as many query heads"
        )


def _repeated(x: Array, query: Array) -> Array:
    """Key heads, each as often as query heads share it."""
    return x if x.ndim < 3 else np.repeat(x, query.shape[-3] // x.shape[-3], -3)


def _gathered(x_bar: Array, x: Array) -> Array:
    """The gradient of heads that were repeated: the sum over their copies."""
    if x.ndim < 3 or x_bar.shape[-3] == x.shape[-3]:
        return x_bar
    gathered: Array = x_bar.reshape(*x_bar.shape[:-3], x.shape[-3], -1, *x_bar.shape[-2:]).sum(-3)
    return gathered


def _in_heads(x: Array, heads: int) -> Array:
    if x.shape[-1] % heads:
        raise ShapeError(f"a projection of width {x.shape[-1]} does not divide into {heads} heads")
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)


def _joined(x: Array) -> Array:
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def _projected(
    x: Array, w_query: Array, w_key: Array, w_value: Array, heads: int, kv_heads: int
) -> tuple[Array, Array, Array]:
    return (
        _in_heads(x @ floats(w_query).T, heads),
        _in_heads(x @ floats(w_key).T, kv_heads),
        _in_heads(x @ floats(w_value).T, kv_heads),
    )
