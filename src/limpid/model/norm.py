"""Norms, computed in the precision of the residual stream."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from limpid.config import ModelConfig


class Scaled(torch.autograd.Function):
    """x / rms(x) ⊙ weight. PyTorch's own has one kernel forward, but about ten backward; this one has five."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        x_hat = x * inverse
        ctx.save_for_backward(x_hat, inverse, weight)
        return x_hat * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, y_bar: Tensor) -> tuple[Tensor, Tensor, None]:
        x_hat, inverse, weight = ctx.saved_tensors
        weight_bar = (y_bar * x_hat).flatten(0, -2).sum(0)
        x_bar = y_bar * weight
        along_x = torch.linalg.vecdot(x_bar, x_hat).unsqueeze(-1).div_(-x_hat.shape[-1])
        return x_bar.addcmul_(x_hat, along_x).mul_(inverse), weight_bar, None


class RMSNorm(nn.Module):
    """Fast twin of maths.RMSNorm."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d))
        self.eps = eps

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        if torch.compiler.is_compiling():  # fuses what is written out
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            return (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight).to(x.dtype)
        y: Tensor = Scaled.apply(x, self.weight, self.eps)
        return y.to(x.dtype)


class LayerNorm(nn.Module):
    """Fast twin of maths.LayerNorm."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d))
        self.bias = nn.Parameter(torch.empty(d))
        self.eps = eps

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def norm(config: ModelConfig) -> nn.Module:
    """The norm of the residual stream that the configuration asks for."""
    kind = RMSNorm if config.norm == "rms" else LayerNorm
    return kind(config.d_model, config.norm_eps)
