"""Attention without a sight of its weights: two ways to mix values, each the quicker one somewhere."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

SHORT = 512
"""Positions up to which all weights of a block are formed on a processor: beyond, they no longer fit its caches."""


def mix(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_head"],
    visible: Bool[Tensor, "..."] | None,
    window: int | None,
) -> Float[Tensor, "batch head query d_head"]:
    """Values weighted by softmax(query · key / √d_head) over the visible keys; visible None is causal."""
    positions = query.shape[2]
    if visible is None and 1 < positions <= SHORT and query.device.type == "cpu" and torch.is_grad_enabled():
        return mix_short(query, key, value, window)
    if visible is None and window is not None and window < positions:
        visible = causal(positions, window, query.device)
    shared = query.shape[1] != key.shape[1]
    is_causal = visible is None and positions > 1
    return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, is_causal=is_causal, enable_gqa=shared)


def mix_short(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """`mix` in two batched products, mask and scale inside the first.

    PyTorch's own kernel takes five times as long for 128 positions in bf16.
    """
    d_head, positions = query.shape[-1], key.shape[2]
    groups = key.shape[0] * key.shape[1]
    queries = query.reshape(groups, -1, d_head)  # the query heads of one key head, one after the other
    keys, values = key.reshape(groups, positions, d_head), value.reshape(groups, positions, d_head)
    hidden = ~causal(positions, window, query.device)
    mask = query.new_zeros(hidden.shape).masked_fill_(hidden, -math.inf)
    mask = mask.repeat(queries.shape[1] // positions, 1).expand(groups, -1, -1)
    weights = torch.baddbmm(mask, queries, keys.transpose(1, 2), alpha=1 / math.sqrt(d_head)).softmax(-1)
    return torch.bmm(weights, values).view(query.shape)


def causal(positions: int, window: int | None, device: torch.device) -> Bool[Tensor, "query key"]:
    """Which keys each query may see: itself and what came before, over at most `window` positions."""
    visible = torch.ones(positions, positions, dtype=torch.bool, device=device).tril()
    return visible if window is None else visible.triu(1 - window)
