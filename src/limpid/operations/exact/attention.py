"""Attention in one operation, forwards and backwards, as the processor and CUDA have it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.elementwise import FUNCTION
from limpid.operations.exact.exact import Exact, arithmetic, growth
from limpid.operations.exact.products import product

SHORT_EXP = 2048.0
"""Units of u of float32 by which PyTorch's exp is off in attention of 16 bits, for all keys alike: shares are not."""


@arithmetic("_scaled_dot_product_flash_attention_for_cpu")
def attention(
    query: Array,
    key: Array,
    value: Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Array | None = None,
    scale: float | None = None,
    formats: dict[str, Any] | None = None,
) -> list[Exact | None]:
    """softmax(q kᵀ s + mask) v, and ln Σ exp of the scores of each query."""
    share, log_sum, reach = _shares(query, key, is_causal, attn_mask, scale)
    made = product(share, value)
    rounding = np.asarray(made.rounding) + (share * reach) @ np.abs(value)
    storage = share @ np.abs(value) + np.abs(made.value)  # shares are rounded to the format of the values
    short = formats is not None and formats["query"].itemsize == 2
    off = reach.max(-1) + FUNCTION * np.abs(log_sum) + (SHORT_EXP if short else 0.0)
    return [Exact(made.value, rounding, storage), Exact(log_sum, off)]


def _shares(
    query: Array, key: Array, is_causal: bool, mask: Array | None, scale: float | None
) -> tuple[Array, Array, Array]:
    """Shares of the keys, ln Σ exp of the scores, and how far a share may be off, relatively, in units of u."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    key = _repeated(key, query)
    made = product(query, key.swapaxes(-1, -2))
    scores = scale * made.value
    reach = abs(scale) * np.asarray(made.rounding) + FUNCTION * np.abs(scores)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        reach = reach + (0 if mask.dtype == bool else np.where(np.isfinite(mask), np.abs(mask), 0.0))
    top = scores.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    weight = np.exp(scores - top)
    whole = weight.sum(-1, keepdims=True)
    with np.errstate(all="ignore"):
        share = np.where(whole > 0, weight / whole, 0.0)
        log_sum = (top + np.log(whole)).squeeze(-1)
    seen = np.isfinite(scores)
    reach = np.where(seen, reach, 0.0)
    far = np.where(seen, np.abs(scores - top), 0.0)
    most = (share * reach).sum(-1, keepdims=True)
    return share, log_sum, np.where(seen, reach + most + far + growth(key.shape[-2]) + 2 * FUNCTION, 0.0)


def _repeated(key: Array, query: Array) -> Array:
    """Keys for each of the queries' heads."""
    groups = query.shape[-3] // key.shape[-3]
    return key if groups == 1 else np.repeat(key, groups, -3)


@arithmetic("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> list[Exact | None]:
    """Of queries, keys and values."""
    return _backward(grad_out, query, key, value, out, is_causal, attn_mask, scale)[0]


def _backward(
    grad_out: Array, query: Array, key: Array, value: Array, out: Array, is_causal: bool, attn_mask: Array | None,
    scale: float | None,
) -> tuple[list[Exact | None], Exact]:  # fmt: skip
    """Of queries, keys and values, and of scores: the kernel forms shares again, and Σ ō o from its rounded result."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    share, _, reach = _shares(query, key, is_causal, attn_mask, scale)
    wide = _repeated(value, query)
    of_share = product(grad_out, wide.swapaxes(-1, -2))
    inner = (grad_out * out).sum(-1, keepdims=True)
    size = np.abs(of_share.value) + np.abs(grad_out * out).sum(-1, keepdims=True)
    of_score = share * (of_share.value - inner)
    off = share * (np.asarray(of_share.rounding) + (reach + growth(query.shape[-1]) + FUNCTION) * size)
    formed = share * size  # what is rounded to the engine's format before the products
    back, across = np.abs(_repeated(key, query)), np.abs(query)
    of_query = product(of_score, _repeated(key, query))
    of_key = product(of_score.swapaxes(-1, -2), query)
    of_value = product(share.swapaxes(-1, -2), grad_out)
    taught = abs(scale)
    found = [
        Exact(taught * of_query.value, taught * (of_query.rounding + off @ back),
              np.abs(taught * of_query.value) + 2 * taught * (formed @ back)),
        Exact(taught * of_key.value, taught * (of_key.rounding + off.swapaxes(-1, -2) @ across),
              taught * (formed.swapaxes(-1, -2) @ across)),
        Exact(of_value.value, of_value.rounding + (share * reach).swapaxes(-1, -2) @ np.abs(grad_out),
              share.swapaxes(-1, -2) @ np.abs(grad_out)),
    ]  # fmt: skip
    of_scores = Exact(of_score, off, np.abs(of_score) + formed)
    return [found[0], _gathered(found[1], key.shape), _gathered(found[2], value.shape)], of_scores


def _gathered(of_all: Exact, shape: tuple[int, ...]) -> Exact:
    """Heads that share a key are added up."""
    if of_all.value.shape == shape:
        return Exact(of_all.value, of_all.rounding, np.abs(of_all.value) + 2 * np.asarray(of_all.storage))
    groups = of_all.value.shape[-3] // shape[-3]

    def split(array: Any) -> Array:
        array = np.broadcast_to(array, of_all.value.shape)
        return array.reshape(*shape[:-2], groups, *shape[-2:]).sum(-3)

    return Exact(
        split(of_all.value),
        groups * split(of_all.rounding),
        split(np.abs(of_all.value) + 2 * np.asarray(of_all.storage)),
    )


# CUDA's kernels: the same, with logarithms of sums in layouts of their own, and what they draw masks from


@arithmetic("_scaled_dot_product_flash_attention")
def flash_attention(
    query: Array, key: Array, value: Array, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, scale: float | None = None, formats: dict[str, Any] | None = None,
) -> list[Exact | None]:  # fmt: skip
    """With the lengths and the seed after them."""
    _without(dropout_p)
    return [*attention(query, key, value, 0.0, is_causal, None, scale, formats), *[None] * 7]


@arithmetic("_scaled_dot_product_efficient_attention")
def efficient_attention(
    query: Array, key: Array, value: Array, attn_bias: Array | None, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, formats: dict[str, Any] | None = None,
    results: list[Array | None] | None = None,
) -> list[Exact | None]:  # fmt: skip
    """With a bias of the scores, and the seed after."""
    _without(dropout_p)
    made, log_sum = attention(query, key, value, 0.0, is_causal, attn_bias, scale, formats)
    return [made, _laid_out(log_sum, results), None, None]


@arithmetic("_scaled_dot_product_cudnn_attention")
def cudnn_attention(
    query: Array, key: Array, value: Array, attn_bias: Array | None, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, return_debug_mask: bool = False, scale: float | None = None,
    formats: dict[str, Any] | None = None, results: list[Array | None] | None = None,
) -> list[Exact | None]:  # fmt: skip
    """With lengths and seeds after."""
    found = efficient_attention(
        query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale, formats, results
    )
    return [*found[:2], *[None] * 7]


def _without(dropout_p: float) -> None:
    if dropout_p:
        raise NotImplementedError("its dropout is drawn inside of the kernel")


def _laid_out(log_sum: Exact | None, results: list[Array | None] | None) -> Exact | None:
    """Logarithms as the kernel lays them out: none, an axis more, or rows filled up, with what nobody reads."""
    engine = None if results is None else results[1]
    if log_sum is None or engine is None or not engine.size:
        return None if engine is None or log_sum is None else Exact(engine)
    value, rounding = log_sum.value, np.broadcast_to(log_sum.rounding, log_sum.value.shape)
    if engine.ndim > value.ndim:
        return Exact(value[..., None], rounding[..., None])
    filled = engine[..., value.shape[-1] :]
    return Exact(np.concatenate([value, filled], -1), np.concatenate([rounding, np.zeros(filled.shape)], -1))


@arithmetic("_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_cudnn_attention_backward")
def flash_attention_backward(
    grad_out: Array, query: Array, key: Array, value: Array, out: Array, logsumexp: Array, dropout_p: float,
    is_causal: bool, attn_bias: Array | None = None, scale: float | None = None, **of_lengths_and_seeds: Any,
) -> list[Exact | None]:  # fmt: skip
    """Of queries, keys and values."""
    _without(dropout_p)
    return _backward(grad_out, query, key, value, out, is_causal, attn_bias, scale)[0]


@arithmetic("_scaled_dot_product_efficient_attention_backward")
def efficient_attention_backward(
    grad_out_: Array, query: Array, key: Array, value: Array, attn_bias: Array | None, out: Array, logsumexp: Array,
    dropout_p: float, grad_input_mask: list[bool], is_causal: bool = False, scale: float | None = None,
    **of_seeds: Any,
) -> list[Exact | None]:  # fmt: skip
    """Of the bias, too."""
    _without(dropout_p)
    found, of_scores = _backward(grad_out_, query, key, value, out, is_causal, attn_bias, scale)
    of_bias = None
    if attn_bias is not None and grad_input_mask[3]:
        of_bias = _summed_to(of_scores, attn_bias.shape)
    return [*[one if asked else None for one, asked in zip(found, grad_input_mask, strict=False)], of_bias]


def _summed_to(of_scores: Exact, shape: tuple[int, ...]) -> Exact:
    """Added up along the axes that a bias is repeated along."""
    whole = of_scores.value.shape
    axes = tuple(axis for axis, (own, every) in enumerate(zip(shape, whole, strict=True)) if own != every)
    assert of_scores.storage is not None
    value, size = of_scores.value.sum(axes, keepdims=True), of_scores.storage.sum(axes, keepdims=True)
    count = math.prod(whole[axis] for axis in axes)
    rounding = np.asarray(of_scores.rounding).sum(axes, keepdims=True) + growth(count) * size
    return Exact(value, rounding, size)
