"""Fused attention: softmax(query · keyᵀ / √d_head + mask) · value, without handing out scores or weights.

Two kernels, each the faster one somewhere: PyTorch's own, and two batched products for short contexts on a processor
with vectors of 512 bits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from limpid.kernel_limits import keeps_no_weights, materialised_positions
from limpid.model.kernels.attention_tiles import gradients_in_tiles, mixed_in_tiles


def attention(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_head"],
    visible: Bool[Tensor, "..."] | None,
    window: int | None,
) -> Float[Tensor, "batch head query d_head"]:
    """Values weighted by softmax(query · key / √d_head) over the visible keys; visible None is causal."""
    positions = query.shape[2]
    if visible is None and window is not None and window < positions:
        visible = causal_mask(positions, window, query.device)
    shared = query.shape[1] != key.shape[1]
    is_causal = visible is None and positions > 1
    return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, is_causal=is_causal, enable_gqa=shared)


def is_short(positions: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether training uses `short_attention` for so many positions in this format."""
    return 1 < positions <= materialised_positions(dtype.itemsize) and device.type == "cpu"


def short_masks(windows: set[int | None], like: Tensor, dtype: torch.dtype) -> dict[int | None, Tensor]:
    """What `short_attention` adds to the scores, for each window: 0 or -∞; empty where `attention` is faster.

    Made once for all blocks, and outside of them: compiled into a block it would be made again for every head.
    """
    positions = like.shape[1]
    if not (is_short(positions, dtype, like.device) and torch.is_grad_enabled()):
        return {}
    zeros = torch.zeros(positions, positions, dtype=dtype, device=like.device)
    return {window: zeros.masked_fill(~causal_mask(positions, window, like.device), -math.inf) for window in windows}


def short_attention(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_head"],
    mask: Float[Tensor, "query key"],
) -> Float[Tensor, "batch head query d_head"]:
    """`attention` in two batched products, mask and scale inside the first.

    PyTorch's own kernel takes five times as long for 128 positions in bf16.
    """
    d_head, positions = query.shape[-1], key.shape[2]
    groups = key.shape[0] * key.shape[1]
    queries = query.reshape(groups, -1, d_head)  # the query heads of one key head, one after the other
    keys, values = key.reshape(groups, positions, d_head), value.reshape(groups, positions, d_head)
    mixed: Tensor = ShortAttention.apply(queries, keys, values, mask)
    return mixed.view(query.shape)


class ShortAttention(torch.autograd.Function):
    """softmax(query · key / √d_head + mask) · value. Every product is formed as it is read next, none is transposed.

    In 32 bits and long rows the weights are formed in tiles that stay in the caches, and again in the backward pass.
    In 16 bits they are kept: adding up gradients over tiles would round once more, and softmax is a third of the time.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        ctx.tiled = keeps_no_weights(key.shape[1], key.dtype.itemsize) and not torch.compiler.is_compiling()
        if ctx.tiled:
            ctx.save_for_backward(query, key, value, mask)
            return mixed_in_tiles(query, key, value, mask)
        scale = 1 / math.sqrt(query.shape[-1])
        mask = mask.repeat(query.shape[1] // len(mask), 1).expand(len(query), -1, -1)
        weights = softmax_of(torch.baddbmm(mask, query, key.transpose(1, 2), alpha=scale))
        ctx.save_for_backward(query, key, value, weights)
        return torch.bmm(weights, value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mixed_bar: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, weights = ctx.saved_tensors
        if ctx.tiled:
            return *gradients_in_tiles(query, key, value, weights, mixed_bar), None
        value_bar = torch.bmm(weights.transpose(1, 2), mixed_bar)
        scores_bar = torch.ops.aten._softmax_backward_data(
            torch.bmm(mixed_bar, value.transpose(1, 2)), weights, -1, weights.dtype
        )
        scale = 1 / math.sqrt(query.shape[-1])
        query_bar = torch.bmm(scores_bar, key).mul_(scale)
        key_bar = torch.bmm(scores_bar.transpose(1, 2), query).mul_(scale)
        return query_bar, key_bar, value_bar, None


def softmax_of(scores: Float[Tensor, "group query key"]) -> Float[Tensor, "group query key"]:
    """Softmax in the place of the scores: a second array of their size would leave a hole between what is kept."""
    if torch.compiler.is_compiling():
        return scores.softmax(-1)
    return torch.softmax(scores, -1, out=scores)


def causal_mask(positions: int, window: int | None, device: torch.device) -> Bool[Tensor, "query key"]:
    """Which keys each query may see: itself and what came before, over at most `window` positions."""
    visible = torch.ones(positions, positions, dtype=torch.bool, device=device).tril()
    return visible if window is None else visible.triu(1 - window)
