"""Causal attention in limpid's own kernel, native/attention.cpp: bfloat16, in tiles, weights formed again backward.

Scores and their gradients stay in float32; weights and the gradients of scores are rounded once, for the products that
read them. It holds queries, keys and values for the backward pass, and nothing that grows with positions squared.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from limpid.kernel_limits import has_native_attention
from limpid.model.kernels.unseen import is_unseen
from limpid.native.build import library


def serves(device: str, dtype: torch.dtype, d_head: int) -> bool:
    """Whether the kernel is there for heads of this kind."""
    return device == "cpu" and dtype == torch.bfloat16 and has_native_attention(d_head) and library() is not None


serves._dynamo_marked_constant = True  # type: ignore[attr-defined]  # PyTorch's decorator would load the compiler


def native_attention(
    query: Float[Tensor, "batch position head d_head"],
    key: Float[Tensor, "batch position kv_head d_head"],
    value: Float[Tensor, "batch position kv_head d_head"],
    window: int | None,
) -> Float[Tensor, "batch position head d_head"]:
    """softmax(query · key / √d_head) · value, over what came before, or over a window of it."""
    mixed: Tensor = NativeAttention.apply(query, key, value, window or 0)
    return mixed


class NativeAttention(torch.autograd.Function):
    """The kernel and its derivative."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.window = window
        return _called(_forward, query)(query, key, value, window)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mixed_bar: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        return *_called(_backward, mixed_bar)(mixed_bar, *ctx.saved_tensors, ctx.window), None


def _forward(query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
    mixed = query.new_empty(query.shape)
    kernels = _kernels()
    arrays = [argument for one in map(_readable, (query, key, value)) for argument in _array(one)]
    kernels.attention_forward(_shape(query, key, window), *arrays, *_array(mixed), *_rest(query))
    return mixed


def _backward(
    mixed_bar: Tensor, query: Tensor, key: Tensor, value: Tensor, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    bars = query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)
    kernels = _kernels()
    read = [argument for one in map(_readable, (query, key, value, mixed_bar)) for argument in _array(one)]
    written = [argument for one in bars for argument in _array(one)]
    kernels.attention_backward(_shape(query, key, window), *read, *written, *_rest(query))
    return bars


OPERATIONS = {
    _forward: torch.library.custom_op("limpid::attention", _forward, mutates_args=()),
    _backward: torch.library.custom_op("limpid::attention_backward", _backward, mutates_args=()),
}
"""The same as operations of PyTorch's, which compilers and recorders see."""


def _called(kernel: Callable[..., Any], x: Tensor) -> Callable[..., Any]:
    """The kernel itself, or its operation where somebody looks: calling that loads the compiler."""
    return kernel if is_unseen(x) else OPERATIONS[kernel]


@OPERATIONS[_forward].register_fake
def _(query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
    return query.new_empty(query.shape)


@OPERATIONS[_backward].register_fake
def _(mixed_bar: Tensor, query: Tensor, key: Tensor, value: Tensor, window: int) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _kernels() -> ctypes.CDLL:
    kernels = library()
    if kernels is None:
        raise RuntimeError("limpid::attention needs kernels that are not here: ask `serves` first")
    return kernels


def _readable(x: Tensor) -> Tensor:
    """With the numbers of a head side by side, and rows that begin at pairs."""
    return x if x.stride(-1) == 1 and not any(step % 2 for step in x.stride()[:-1]) else x.contiguous()


def _numbers(*numbers: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _array(x: Tensor) -> tuple[ctypes.c_void_p, ctypes.Array[ctypes.c_int64]]:
    """Where it lies, and its steps by row of the batch, head and position."""
    return ctypes.c_void_p(x.data_ptr()), _numbers(x.stride(0), x.stride(2), x.stride(1))


def _shape(query: Tensor, key: Tensor, window: int) -> ctypes.Array[ctypes.c_int64]:
    batch, positions, heads, d_head = query.shape
    return _numbers(batch, heads, key.shape[2], positions, d_head, window)


def _rest(query: Tensor) -> tuple[ctypes.c_float, int]:
    """The factor of the scores, and how many threads work."""
    return ctypes.c_float(1 / math.sqrt(query.shape[-1])), torch.get_num_threads()
