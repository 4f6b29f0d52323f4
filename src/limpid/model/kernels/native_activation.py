"""Activations of bfloat16 in limpid's own kernel, native/activation.cpp: alone or as a gate, rounded once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from limpid.kernel_limits import LANES
from limpid.model.kernels.native_call import Call, has_kernels, kernels, place, size

KINDS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
"""By the configuration's word, as the kernel numbers them."""


def serves(device: str, dtype: torch.dtype, d_ff: int, activation: str) -> bool:
    """Whether the kernel is there for this activation of arrays so wide."""
    return activation in KINDS and d_ff % LANES == 0 and has_kernels(device, dtype)


def native_activation(x: Tensor, up: Tensor | None, activation: str) -> Tensor:
    """f(x), or f(x) ⊙ up."""
    y: Tensor = NativeActivation.apply(x, up, KINDS[activation])
    return y


class NativeActivation(torch.autograd.Function):
    """The kernel and its derivative; the backward pass reads what went in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor | None, kind: int) -> Tensor:
        ctx.save_for_backward(x, up)
        ctx.kind = kind
        return FORWARD(x, up, kind)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, y_bar: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, up = ctx.saved_tensors
        x_bar, up_bar = BACKWARD(y_bar, x, up, ctx.kind)
        return x_bar, None if up is None else up_bar, None


def _forward(x: Tensor, up: Tensor | None, kind: int) -> Tensor:
    x, up = x.contiguous(), None if up is None else up.contiguous()
    y = torch.empty_like(x)
    kernels().activation_forward(kind, place(x), place(up), place(y), size(x.numel()), torch.get_num_threads())
    return y


def _backward(y_bar: Tensor, x: Tensor, up: Tensor | None, kind: int) -> tuple[Tensor, Tensor]:
    y_bar = y_bar.contiguous()
    x_bar = torch.empty_like(y_bar)
    return x_bar, _derived(y_bar, x, up, None, x_bar, kind)


def _again(y_bar: Tensor, x: Tensor, up: Tensor | None, kind: int) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(y_bar)
    return y, _derived(y_bar, x, up, y, y_bar, kind)


def _derived(y_bar: Tensor, x: Tensor, up: Tensor | None, y: Tensor | None, x_bar: Tensor, kind: int) -> Tensor:
    """Fill x_bar, and y where there is one; returns the gradient of up."""
    x, up = x.contiguous(), None if up is None else up.contiguous()
    up_bar = x.new_empty(0) if up is None else torch.empty_like(x)
    read, written = (place(x), place(up), place(y_bar)), (place(y), place(x_bar), place(up_bar))
    kernels().activation_backward(kind, *read, *written, size(x.numel()), torch.get_num_threads())
    return up_bar


def _forward_shapes(x: Tensor, up: Tensor | None, kind: int) -> Tensor:
    return torch.empty_like(x)


def _backward_shapes(y_bar: Tensor, x: Tensor, up: Tensor | None, kind: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(0) if up is None else torch.empty_like(x)


FORWARD = Call("activation", _forward, _forward_shapes)
BACKWARD = Call("activation_backward", _backward, _backward_shapes)
AGAIN = Call("activation_again", _again, _backward_shapes, mutates=("y_bar",))
"""Puts the gradient of x into the place of ȳ; returns y, formed again, and the gradient of up."""
