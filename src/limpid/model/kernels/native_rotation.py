"""Rotation of queries and keys in limpid's own kernel, native/rotation.cpp: one pass over bfloat16 heads."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from limpid.model.kernels.native_call import Call, has_kernels, kernels, place, size


def serves(x: Float[Tensor, "batch position head d_head"], cos: Tensor) -> bool:
    """Whether the kernel is there for these heads and angles."""
    shapes = cos.shape[-2] == 1 and cos.shape[-3] == x.shape[1] and cos.shape[-1] * 2 == x.shape[-1]
    return shapes and cos.dtype == torch.float32 and not cos.requires_grad and has_kernels(x.device.type, x.dtype)


class NativeRotation(torch.autograd.Function):
    """Every pair turned by its angle; its adjoint is the opposite turn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, halves: bool, back: bool = False) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.halves, ctx.back = halves, back
        return ROTATION(x, cos, sin, halves, back)

    @staticmethod
    def backward(ctx: Any, y_bar: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin = ctx.saved_tensors
        return NativeRotation.apply(y_bar, cos, sin, ctx.halves, not ctx.back), None, None, None, None


def _rotation(x: Tensor, cos: Tensor, sin: Tensor, halves: bool, back: bool) -> Tensor:
    batch, positions, heads, d_head = x.shape
    if not (x.stride(3) == 1 and x.stride(2) == d_head and x.stride(0) == positions * x.stride(1)):
        x = x.contiguous()
    cos, sin, y = cos.contiguous(), sin.contiguous(), x.new_empty(x.shape)
    own_angles = positions if cos.ndim == 4 and cos.shape[0] == batch > 1 else 0  # of each row of the batch
    angles = (place(cos), place(sin), size(own_angles), ctypes.c_float(-1.0 if back else 1.0), int(halves))
    shape = (size(batch * positions), size(positions), size(heads), size(d_head // 2))
    kernels().rotation(place(x), size(x.stride(1)), *angles, place(y), *shape, torch.get_num_threads())
    return y


def _rotation_shapes(x: Tensor, cos: Tensor, sin: Tensor, halves: bool, back: bool) -> Tensor:
    return x.new_empty(x.shape)


ROTATION = Call("rotation", _rotation, _rotation_shapes)
