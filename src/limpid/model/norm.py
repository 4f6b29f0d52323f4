"""Norms, computed in the precision of the residual stream."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from limpid.config import ModelConfig


class RMSNorm(nn.Module):
    """Fast twin of maths.RMSNorm."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d))
        self.eps = eps

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


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
