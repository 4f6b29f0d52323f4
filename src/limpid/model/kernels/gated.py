"""Fused gate: f(gate) ⊙ up, of which only gate and up are kept; never keeps f(gate)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Gated(torch.autograd.Function):
    """f(gate) ⊙ up, in the kernels that autograd would run, to the same bits."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.activation = activation
        return activation(gate) * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, y_bar: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            gate = gate.detach().requires_grad_()
            activated = ctx.activation(gate)
        (gate_bar,) = torch.autograd.grad(activated, gate, y_bar * up)
        return gate_bar, activated.detach().mul_(y_bar), None
