"""Fused rotation of queries and keys: each pair of features turned by an angle, in the format of the angles."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def rotation(
    x: Float[Tensor, "batch position head d_head"],
    cos: Float[Tensor, "... position 1 pairs"],
    sin: Float[Tensor, "... position 1 pairs"],
    halves: bool,
) -> Float[Tensor, "batch position head d_head"]:
    """The same as `FusedRotation` in one expression, which may be compiled, and differentiated twice.

    A pair's features are taken apart and put together again: where one is found by its number modulo the pairs, the
    compiler makes no vectors.
    """
    two = -2 if halves else -1  # the axis along which the two features of a pair lie
    first, second = x.unflatten(-1, (2, -1) if halves else (-1, 2)).unbind(two)
    y = torch.stack((first * cos - second * sin, second * cos + first * sin), two)
    return y.flatten(-2).to(x.dtype)


class FusedRotation(torch.autograd.Function):
    """Every pair turned by its angle; its adjoint is the opposite turn.

    Written out, PyTorch would take three times as many passes over the heads, most of them in mixed formats.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, halves: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.halves = halves
        wide = x.to(torch.promote_types(x.dtype, cos.dtype))
        y = torch.empty_like(wide)
        (first, second), (one, other) = pairs(wide, halves), pairs(y, halves)
        torch.mul(first, cos, out=one)
        one.addcmul_(second, sin, value=-1)
        torch.mul(second, cos, out=other)
        other.addcmul_(first, sin)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, y_bar: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return FusedRotation.apply(y_bar, cos, -sin, ctx.halves), None, None, None


def pairs(x: Tensor, halves: bool) -> tuple[Tensor, Tensor]:
    """The first and the second feature of every pair, as views."""
    if halves:
        middle = x.shape[-1] // 2
        return x[..., :middle], x[..., middle:]
    return x[..., 0::2], x[..., 1::2]
