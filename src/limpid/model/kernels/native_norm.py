"""Norms of the float32 stream in limpid's own kernel, native/norm.cpp: one pass forward with the cast, one back."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from limpid.kernel_limits import LANES
from limpid.model.kernels.native_call import Call, has_kernels, kernels, place, size


def serves(x: Tensor, to: torch.dtype | None) -> bool:
    """Whether the kernel is there for a norm of this array in this format."""
    return (
        to is not None
        and x.dtype == torch.float32
        and x.shape[-1] % LANES == 0
        and not torch.compiler.is_compiling()
        and has_kernels(x.device.type, to)
    )


def native_norm(
    x: Float[Tensor, "... d"], weight: Float[Tensor, " d"], bias: Float[Tensor, " d"] | None, eps: float
) -> Float[Tensor, "... d"]:
    """Layer norm of each row, or RMS norm where there is no bias, in bfloat16."""
    y: Tensor = NativeNorm.apply(x, weight, bias, eps)
    return y


def native_joined_norm(
    x: Float[Tensor, "... d"],
    written: Float[Tensor, "... d"] | None,
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"] | None,
    eps: float,
) -> tuple[Float[Tensor, "... d"], Float[Tensor, "... d"]]:
    """The stream x, or x + written, and its norm, for a stream that something else reads beside the norm: both
    gradients are added up in the pass that forms one of them."""
    stream, y = NativeJoinedNorm.apply(x, written, weight, bias, eps)
    return stream, y


class NativeNorm(torch.autograd.Function):
    """The kernel and its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        _, y, moments = FORWARD(x, None, weight, bias, eps)
        ctx.save_for_backward(x, weight, moments)
        ctx.centred = bias is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, y_bar: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x_bar, _, weight_bar, bias_bar = BACKWARD(y_bar, None, *ctx.saved_tensors, ctx.centred, False)
        return x_bar, weight_bar, bias_bar if ctx.centred else None, None


class NativeJoinedNorm(torch.autograd.Function):
    """The same of a sum, which it gives, too."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, written: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        stream, y, moments = FORWARD(x, written, weight, bias, eps)
        stream = x if written is None else stream
        ctx.save_for_backward(stream, weight, moments)
        ctx.centred, ctx.joins = bias is not None, written is not None
        return stream, y

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, stream_bar: Tensor, y_bar: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None, None]:
        x_bar, written_bar, weight_bar, bias_bar = BACKWARD(
            y_bar, stream_bar, *ctx.saved_tensors, ctx.centred, ctx.joins
        )
        return x_bar, written_bar if ctx.joins else None, weight_bar, bias_bar if ctx.centred else None, None


def _forward(
    x: Tensor, written: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    x, written = x.contiguous(), None if written is None else written.contiguous()
    stream = x.new_empty(0) if written is None else torch.empty_like(x)
    y, moments = torch.empty_like(x, dtype=torch.bfloat16), x.new_empty(*x.shape[:-1], 2)
    read = (place(x), place(written), place(stream), place(weight), place(bias), ctypes.c_float(eps))
    kernels().norm_forward(*read, place(y), place(moments), *_rows(x))
    return stream, y, moments


def _backward(
    y_bar: Tensor, beside: Tensor | None, x: Tensor, weight: Tensor, moments: Tensor, centred: bool, joins: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y_bar, beside = x.contiguous(), y_bar.contiguous(), None if beside is None else beside.contiguous()
    x_bar, written_bar, weight_bar, bias_bar = _backward_shapes(y_bar, beside, x, weight, moments, centred, joins)
    read = (place(x), place(weight), place(moments), place(y_bar), place(beside))
    written = (place(x_bar), place(written_bar if joins else None), place(weight_bar))
    kernels().norm_backward(*read, *written, place(bias_bar if centred else None), *_rows(x))
    return x_bar, written_bar, weight_bar, bias_bar


def _forward_shapes(
    x: Tensor, written: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    stream = x.new_empty(0) if written is None else torch.empty_like(x)
    return stream, torch.empty_like(x, dtype=torch.bfloat16), x.new_empty(*x.shape[:-1], 2)


def _backward_shapes(
    y_bar: Tensor, beside: Tensor | None, x: Tensor, weight: Tensor, moments: Tensor, centred: bool, joins: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    written_bar = torch.empty_like(y_bar) if joins else y_bar.new_empty(0)
    return torch.empty_like(x), written_bar, torch.empty_like(weight), weight.new_empty(weight.shape if centred else 0)


FORWARD = Call("norm", _forward, _forward_shapes)
BACKWARD = Call("norm_backward", _backward, _backward_shapes)


def _rows(x: Tensor) -> tuple[ctypes.c_int64, ctypes.c_int64, int]:
    """How many, of what width, and how many threads go over them."""
    return size(x.numel() // x.shape[-1]), size(x.shape[-1]), torch.get_num_threads()
