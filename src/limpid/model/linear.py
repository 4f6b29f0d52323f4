"""y = x Wᵀ + b in the precision of x: the master weights are cast where they are used."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Linear(nn.Module):
    """Fast twin of maths.Linear."""

    def __init__(self, d_in: int, d_out: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.empty(d_out)) if bias else None

    def forward(self, x: Float[Tensor, "... d_in"]) -> Float[Tensor, "... d_out"]:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class Joined:
    """Several linear maps of the same vectors as one, for decoding: one product reads a matrix of its own layout."""

    def __init__(self, linears: Sequence[Linear], dtype: torch.dtype) -> None:
        self.widths = [linear.weight.shape[0] for linear in linears]
        self.weight = torch.cat([linear.weight.detach() for linear in linears]).to(dtype).t().contiguous()
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self.bias = torch.cat(biases).to(dtype) if biases else None

    def __call__(self, x: Float[Tensor, "... d_in"]) -> tuple[Tensor, ...]:
        y = x @ self.weight
        return (y if self.bias is None else y + self.bias).split(self.widths, -1)
