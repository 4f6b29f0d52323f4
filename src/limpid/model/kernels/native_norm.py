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


class NativeNorm(torch.autograd.Function):
    """The kernel and its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        y, moments = FORWARD(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, moments)
        ctx.centred = bias is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, y_bar: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x_bar, weight_bar, bias_bar = BACKWARD(y_bar, *ctx.saved_tensors, ctx.centred)
        return x_bar, weight_bar, bias_bar if ctx.centred else None, None


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    y, moments = torch.empty_like(x, dtype=torch.bfloat16), x.new_empty(*x.shape[:-1], 2)
    arrays = (place(x), place(weight), place(bias), ctypes.c_float(eps), place(y), place(moments))
    kernels().norm_forward(*arrays, *_rows(x))
    return y, moments


def _backward(
    y_bar: Tensor, x: Tensor, weight: Tensor, moments: Tensor, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    x, y_bar = x.contiguous(), y_bar.contiguous()
    x_bar, weight_bar = torch.empty_like(x), torch.empty_like(weight)
    bias_bar = torch.empty_like(weight) if centred else weight.new_empty(0)
    read = (place(x), place(weight), place(moments), place(y_bar))
    written = (place(x_bar), place(weight_bar), place(bias_bar if centred else None))
    kernels().norm_backward(*read, *written, *_rows(x))
    return x_bar, weight_bar, bias_bar


def _forward_shapes(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, dtype=torch.bfloat16), x.new_empty(*x.shape[:-1], 2)


def _backward_shapes(
    y_bar: Tensor, x: Tensor, weight: Tensor, moments: Tensor, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), weight.new_empty(weight.shape[0] if centred else 0)


FORWARD = Call("norm", _forward, _forward_shapes)
BACKWARD = Call("norm_backward", _backward, _backward_shapes)


def _rows(x: Tensor) -> tuple[ctypes.c_int64, ctypes.c_int64, int]:
    """How many, of what width, and how many threads go over them."""
    return size(x.numel() // x.shape[-1]), size(x.shape[-1]), torch.get_num_threads()
