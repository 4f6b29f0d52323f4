"""Kernels that CUDA alone has on the device of pretence: the CPU's numbers in CUDA's layouts, as PyTorch's meta
kernels have them (torch/_meta_registrations.py)."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

import pretend

aten = torch.ops.aten
Made = tuple[Any, ...]


def _whole(one: Tensor | None) -> Tensor | None:
    return None if one is None else one.cpu()


def _forward(query: Tensor, key: Tensor, value: Tensor, causal: bool, bias: Tensor | None, scale: float | None) -> Made:
    made, log_sums = aten._scaled_dot_product_flash_attention_for_cpu(
        query.cpu(), key.cpu(), value.cpu(), 0.0, causal, attn_mask=_whole(bias), scale=scale
    )
    return made.to(pretend.NAME), log_sums.to(pretend.NAME)


def _backward(
    bar: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, causal: bool,
    bias: Tensor | None, scale: float | None,
) -> Made:  # fmt: skip
    made = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        bar.cpu(), query.cpu(), key.cpu(), value.cpu(), out.cpu(), log_sums.cpu(), 0.0, causal, attn_mask=_whole(bias),
        scale=scale,
    )  # fmt: skip
    return tuple(one.to(pretend.NAME) for one in made)


def _seed() -> Tensor:
    return torch.zeros((), dtype=torch.long, device=pretend.NAME)


def flash(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> Made:  # fmt: skip
    made = _forward(query, key, value, is_causal, None, scale)
    return (*made, None, None, query.shape[2], key.shape[2], _seed(), _seed(), torch.empty(0, device=pretend.NAME))


def flash_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, cum_seq_q: Any,
    cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool, seed: Tensor, offset: Tensor, *,
    scale: float | None = None,
) -> Made:  # fmt: skip
    return _backward(grad_out, query, key, value, out, logsumexp, is_causal, None, scale)


def efficient(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
) -> Made:  # fmt: skip
    """Rows of the logarithms are filled up to blocks of 32."""
    made, log_sums = _forward(query, key, value, is_causal, attn_bias, scale)
    rows = math.ceil(query.shape[2] / 32) * 32 if compute_log_sumexp else 0
    filled = torch.full((*log_sums.shape[:2], rows), math.inf, device=pretend.NAME)
    if rows:
        filled[..., : query.shape[2]] = log_sums
    return made, filled, _seed(), _seed()


def efficient_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, out: Tensor,
    logsumexp: Tensor, seed: Tensor, offset: Tensor, dropout_p: float, grad_input_mask: list[bool],
    is_causal: bool = False, *, scale: float | None = None,
) -> Made:  # fmt: skip
    """Of the bias, too: the gradient of the scores."""
    own = logsumexp[..., : query.shape[2]].contiguous()
    made = _backward(grad_out, query, key, value, out, own, is_causal, attn_bias, scale)
    if attn_bias is None or not grad_input_mask[3]:
        return (*made, None)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    bar, q, k, v, made_out, bias = (one.float() for one in (grad_out, query, key, value, out, attn_bias))
    of_scores = torch.softmax(factor * q @ k.mT + bias, -1) * (bar @ v.mT - (bar * made_out).sum(-1, keepdim=True))
    return (*made, of_scores.to(attn_bias.dtype))


def cudnn(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> Made:  # fmt: skip
    """Logarithms have an axis of one more."""
    made, log_sums = _forward(query, key, value, is_causal, attn_bias, scale)
    return made, log_sums[..., None], None, None, query.shape[2], key.shape[2], _seed(), _seed(), None


def cudnn_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, seed: Tensor,
    offset: Tensor, attn_bias: Tensor | None, cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float,
    is_causal: bool, *, scale: float | None = None,
) -> Made:  # fmt: skip
    return _backward(grad_out, query, key, value, out, logsumexp[..., 0], is_causal, attn_bias, scale)


def batch_norm(
    input: Tensor, weight: Tensor, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, factor: float, epsilon: float,
) -> Made:  # fmt: skip
    """cuDNN's, which keeps something for itself."""
    made = aten.native_batch_norm(input, weight, bias, running_mean, running_var, training, factor, epsilon)
    return (*made, torch.empty(0, dtype=torch.uint8, device=pretend.NAME))


def batch_norm_backward(
    input: Tensor, grad_output: Tensor, weight: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    mean: Tensor | None, rstd: Tensor | None, epsilon: float, kept: Tensor,
) -> Made:  # fmt: skip
    found: Made = aten.native_batch_norm_backward(
        grad_output, input, weight, running_mean, running_var, mean, rstd, True, epsilon, [True] * 3
    )
    return found


@cache
def install() -> torch.library.Library:
    """Make the kernels known to PyTorch in this process."""
    pretend.install()
    library = torch.library.Library("aten", "IMPL")
    for name, forwards, backwards in (
        ("flash", flash, flash_backward), ("efficient", efficient, efficient_backward), ("cudnn", cudnn, cudnn_backward)
    ):  # fmt: skip
        library.impl(f"_scaled_dot_product_{name}_attention", forwards, "PrivateUse1")
        library.impl(f"_scaled_dot_product_{name}_attention_backward", backwards, "PrivateUse1")
    library.impl("cudnn_batch_norm", batch_norm, "PrivateUse1")
    library.impl("cudnn_batch_norm_backward", batch_norm_backward, "PrivateUse1")
    return library
