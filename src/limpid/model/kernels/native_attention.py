"""Causal attention in limpid's own kernel, native/attention.cpp: bfloat16, in tiles, weights formed again backward.

Scores and their gradients stay in float32; weights and the gradients of scores are rounded once, for the products that
read them. It holds queries, keys and values for the backward pass, and nothing that grows with positions squared.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function

from limpid.kernel_limits import has_native_attention
from limpid.model.kernels.native_call import Call, has_kernels, kernels, numbers, place


def serves(device: str, dtype: torch.dtype, d_head: int) -> bool:
    """Whether the kernel is there for heads of this kind."""
    return has_native_attention(d_head) and has_kernels(device, dtype)


def native_attention(
    query: Float[Tensor, "batch position head d_head"],
    key: Float[Tensor, "batch position kv_head d_head"],
    value: Float[Tensor, "batch position kv_head d_head"],
    window: int | None,
) -> Float[Tensor, "batch position head d_head"]:
    """softmax(query · key / √d_head) · value, over what came before, or over a window of it.

    A function mode of PyTorch's sees it, as it sees `scaled_dot_product_attention`.
    """
    if not torch.compiler.is_compiling() and has_torch_function((query, key, value)):
        seen: Tensor = handle_torch_function(native_attention, (query, key, value), query, key, value, window)
        return seen
    mixed: Tensor = NativeAttention.apply(query, key, value, window or 0)
    return mixed


native_attention.is_attention = True  # type: ignore[attr-defined]  # for who looks at functions by what they do


class NativeAttention(torch.autograd.Function):
    """The kernel and its derivative."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.window = window
        return FORWARD(query, key, value, window)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mixed_bar: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        return *BACKWARD(mixed_bar, *ctx.saved_tensors, ctx.window), None


def _forward(query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
    mixed = query.new_empty(query.shape)
    arrays = [argument for one in map(_readable, (query, key, value)) for argument in _array(one)]
    kernels().attention_forward(_shape(query, key, window), *arrays, *_array(mixed), *_rest(query))
    return mixed


def _backward(
    mixed_bar: Tensor, query: Tensor, key: Tensor, value: Tensor, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    bars = query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)
    read = [argument for one in map(_readable, (query, key, value, mixed_bar)) for argument in _array(one)]
    written = [argument for one in bars for argument in _array(one)]
    kernels().attention_backward(_shape(query, key, window), *read, *written, *_rest(query))
    return bars


def _forward_shapes(query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
    return query.new_empty(query.shape)


def _backward_shapes(
    mixed_bar: Tensor, query: Tensor, key: Tensor, value: Tensor, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


FORWARD = Call("attention", _forward, _forward_shapes)
BACKWARD = Call("attention_backward", _backward, _backward_shapes)


def _readable(x: Tensor) -> Tensor:
    """With the numbers of a head side by side, and rows that begin at pairs."""
    return x if x.stride(-1) == 1 and not any(step % 2 for step in x.stride()[:-1]) else x.contiguous()


def _array(x: Tensor) -> tuple[ctypes.c_void_p, ctypes.Array[ctypes.c_int64]]:
    """Where it lies, and its steps by row of the batch, head and position."""
    return place(x), numbers(x.stride(0), x.stride(2), x.stride(1))


def _shape(query: Tensor, key: Tensor, window: int) -> ctypes.Array[ctypes.c_int64]:
    batch, positions, heads, d_head = query.shape
    return numbers(batch, heads, key.shape[2], positions, d_head, window)


def _rest(query: Tensor) -> tuple[ctypes.c_float, int]:
    """The factor of the scores, and how many threads work."""
    return ctypes.c_float(1 / math.sqrt(query.shape[-1])), torch.get_num_threads()
