"""f(x) Wᵀ + b, or (f(x) ⊙ up) Wᵀ + b, in limpid's own kernels: never keeps what the product reads, which the pass that
forms its gradient forms again."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from limpid.model.kernels import native_activation, native_product
from limpid.model.kernels.unseen import is_unseen


def serves(x: Tensor, weight: Tensor, activation: str) -> bool:
    """Whether the kernels are there for this activation of x and its product with this matrix, and both learn."""
    return (
        is_unseen(x)
        and x.requires_grad
        and weight.requires_grad
        and native_activation.serves(x.device.type, x.dtype, x.shape[-1], activation)
        and native_product.serves(x, weight)
    )


def native_activated_product(
    x: Float[Tensor, "... d_ff"],
    up: Float[Tensor, "... d_ff"] | None,
    weight: Float[Tensor, "d_model d_ff"],
    bias: Float[Tensor, " d_model"] | None,
    activation: str,
) -> Float[Tensor, "... d_model"]:
    """The product with f(x), or with f(x) ⊙ up."""
    y: Tensor = NativeActivatedProduct.apply(x, up, weight, bias, native_activation.KINDS[activation])
    return y


class NativeActivatedProduct(torch.autograd.Function):
    """The two kernels after each other, and their derivatives, to the same bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor | None, weight: Tensor, bias: Tensor | None, kind: int) -> Tensor:
        ctx.save_for_backward(x, up, weight)
        ctx.kind = kind
        y: Tensor = native_product.FORWARD(native_activation.FORWARD(x, up, kind), weight, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, y_bar: Tensor) -> tuple[Tensor | None, ...]:
        x, up, weight = ctx.saved_tensors
        bar = native_product.BACKWARD(y_bar, weight)
        # The gradient of x is in the place of `bar` then.
        hidden, up_bar = native_activation.AGAIN(bar, x, up, ctx.kind)
        learned = native_product.learned_gradients(y_bar, hidden, weight.dtype, *ctx.needs_input_grad[2:4])
        return bar, None if up is None else up_bar, *learned, None
