"""y = x Wᵀ + b in the precision of x: the master weights are cast where they are used."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Linear(nn.Linear):
    """Fast twin of maths.Linear. Initialised by `model.initialise`."""

    def reset_parameters(self) -> None:
        """Nothing is drawn here."""

    def forward(self, input: Float[Tensor, "... d_in"]) -> Float[Tensor, "... d_out"]:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.linear(input, self.weight.to(input.dtype), bias)
