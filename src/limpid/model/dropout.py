"""Dropout that reports its mask: a step can only be redone when it is known what was dropped."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from limpid.model.observe import FAST, Mode


class Dropout(nn.Module):
    """Fast twin of maths.Dropout; the mask is reported as kept(name). Source: Srivastava et al. 2014, JMLR 15."""

    def __init__(self, name: str, probability: float) -> None:
        super().__init__()
        self.name, self.probability = name, probability

    def forward(self, x: Float[Tensor, "..."], mode: Mode = FAST) -> Float[Tensor, "..."]:
        if not (self.training and self.probability):
            return x
        kept = torch.empty_like(x).bernoulli_(1 - self.probability)
        mode.report(f"kept({self.name})", kept)
        return mode.report(self.name, x * kept / (1 - self.probability))
