"""Norms, computed in the precision of the residual stream."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from limpid.config import ModelConfig
from limpid.model.kernels.native_norm import native_norm, serves
from limpid.model.kernels.rms_norm import FusedRMSNorm
from limpid.model.kernels.unseen import is_hooked, is_unseen
from limpid.model.observe import FAST, Mode


def rms_norm(x: Float[Tensor, "... d"], weight: Float[Tensor, " d"], eps: float) -> Float[Tensor, "... d"]:
    """x / rms(x) ⊙ weight from PyTorch's own operations, which may be compiled, and differentiated twice."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(x.dtype)


class RMSNorm(nn.Module):
    """Fast twin of maths.RMSNorm."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d))
        self.eps = eps

    def forward(
        self, x: Float[Tensor, "... d"], mode: Mode = FAST, to: torch.dtype | None = None
    ) -> Float[Tensor, "... d"]:
        """In the format of x, or another."""
        return self.normed(x, mode, to).to(to or x.dtype)

    def normed(self, x: Float[Tensor, "... d"], mode: Mode, to: torch.dtype | None) -> Float[Tensor, "... d"]:
        """In the format in which it is formed."""
        if not mode.plain and serves(x, to):
            return native_norm(x, self.weight, None, self.eps)
        if mode.plain:  # a view, so that its gradient is summed up before it is added to that of the residual stream
            return rms_norm(x.view_as(x), self.weight, self.eps)
        if torch.compiler.is_compiling():  # the compiler fuses what is written out
            return rms_norm(x, self.weight, self.eps)
        y: Tensor = FusedRMSNorm.apply(x, self.weight, self.eps)
        return y


class LayerNorm(nn.Module):
    """Fast twin of maths.LayerNorm."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d))
        self.bias = nn.Parameter(torch.empty(d))
        self.eps = eps

    def forward(
        self, x: Float[Tensor, "... d"], mode: Mode = FAST, to: torch.dtype | None = None
    ) -> Float[Tensor, "... d"]:
        """In the format of x, or another."""
        if not mode.plain and serves(x, to):
            return native_norm(x, self.weight, self.bias, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps).to(to or x.dtype)


def is_joined(norm: nn.Module, x: Tensor, written: Tensor | None, mode: Mode, to: torch.dtype) -> bool:
    """Whether the kernel of this norm forms the sum x + written, too, and adds up the gradients of x: nobody looks."""
    seen = mode.plain or mode.observe is not None or not is_unseen(x) or is_hooked(norm)
    addable = written is None or (type(written) is Tensor and written.dtype == to)
    return not seen and addable and serves(x, to)


NORMS = {"rms": RMSNorm, "layer": LayerNorm}
"""By the configuration's word."""


def norm(config: ModelConfig) -> nn.Module:
    """The norm of the residual stream that the configuration asks for."""
    return NORMS[config.norm](config.d_model, config.norm_eps)
