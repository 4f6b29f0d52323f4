"""Attention in one operation as a function that can be differentiated in each of its arguments, of every kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Made = tuple[Tensor | None, ...]
BLOCK = 32
"""Of CUDA's memory-efficient kernel."""


def _flash(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """softmax(QKᵀ / √d) V, and the logarithm of each row's sum of exponentials."""
    _without(dropout_p)
    scores = _scores(query, key, is_causal, attn_mask, scale)
    shared = _of_all_heads(value, query)
    return torch.softmax(scores, -1) @ shared, torch.logsumexp(scores, -1)


def _flash_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, dropout_p: float,
    is_causal: bool, *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """S̄ = P (ȲVᵀ - Σ Ȳ Y), P = exp(S - logsumexp) (Dao et al. 2022, arXiv:2205.14135, algorithm 4)."""
    _without(dropout_p)
    log_sums = logsumexp.flatten(2)[..., : query.shape[-2], None]  # CUDA's have an axis more, or rows filled up
    weights = (_scores(query, key, is_causal, attn_mask, scale) - log_sums).exp()
    shared = _of_all_heads(value, query)
    scores_bar = weights * (grad_out @ shared.mT - (grad_out * out).sum(-1, keepdim=True))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    key_bar, value_bar = factor * scores_bar.mT @ query, weights.mT @ grad_out
    return (
        factor * scores_bar @ _of_all_heads(key, query),
        _of_groups(key_bar, key),
        _of_groups(value_bar, value),
    )


def _without(dropout_p: float) -> None:
    if dropout_p:
        raise NotImplementedError("its mask is drawn inside")


def _scores(query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = factor * query @ _of_all_heads(key, query).mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def _of_all_heads(one: Tensor, query: Tensor) -> Tensor:
    """Keys or values of groups of heads, each repeated for its heads."""
    times = query.shape[1] // one.shape[1]
    return one if times == 1 else one.repeat_interleave(times, 1)


def _of_groups(bar: Tensor, one: Tensor) -> Tensor:
    times = bar.shape[1] // one.shape[1]
    return bar if times == 1 else bar.unflatten(1, (one.shape[1], times)).sum(2)


def _flash_on_cuda(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> Made:  # fmt: skip
    return (*_flash(query, key, value, dropout_p, is_causal, scale=scale), *[None] * 7)


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
) -> Made:  # fmt: skip
    """Logarithms of sums in rows of whole blocks of 32; those that there are no queries of are read by nobody."""
    made, log_sums = _flash(query, key, value, dropout_p, is_causal, attn_mask=attn_bias, scale=scale)
    filled = -log_sums.shape[-1] % BLOCK
    return made, torch.nn.functional.pad(log_sums, (0, filled)) if compute_log_sumexp else log_sums[..., :0], None, None


def _cudnn(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> Made:  # fmt: skip
    made, log_sums = _flash(query, key, value, dropout_p, is_causal, attn_mask=attn_bias, scale=scale)
    return (made, log_sums[..., None], *[None] * 7)


def _flash_on_cuda_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
    cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    philox_seed: Tensor | None, philox_offset: Tensor | None, *, scale: float | None = None,
) -> Made:  # fmt: skip
    return _flash_backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, scale=scale)


def _efficient_backward(
    grad_out_: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, out: Tensor,
    logsumexp: Tensor, philox_seed: Tensor | None, philox_offset: Tensor | None, dropout_p: float,
    grad_input_mask: list[bool], is_causal: bool = False, *, scale: float | None = None,
) -> Made:  # fmt: skip
    if grad_input_mask[3]:
        raise NotImplementedError("of a bias that is learned")
    found = _flash_backward(
        grad_out_, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=attn_bias, scale=scale
    )
    return *[one if asked else None for one, asked in zip(found, grad_input_mask, strict=False)], None


def _cudnn_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
    philox_seed: Tensor | None, philox_offset: Tensor | None, attn_bias: Tensor | None, cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool, *, scale: float | None = None,
) -> Made:  # fmt: skip
    return _flash_backward(
        grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=attn_bias, scale=scale
    )


ATTENTION: dict[str, Callable[..., Made]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _flash,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _flash_backward,
    "_scaled_dot_product_flash_attention": _flash_on_cuda,
    "_scaled_dot_product_flash_attention_backward": _flash_on_cuda_backward,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_cudnn_attention": _cudnn,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
}
"""By ATen's names."""
