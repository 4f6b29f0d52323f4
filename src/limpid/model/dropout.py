"""Dropout that reports its mask: a step can only be redone when it is known what was dropped."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from limpid.model.observe import FAST, Mode
from limpid.model.spread import spread_like


def seed_of(*numbers: int) -> int:
    """A seed of PyTorch's generators, as a function of whole numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


class Dropout(nn.Module):
    """Fast twin of maths.Dropout; the mask is reported as kept(name). Source: Srivastava et al. 2014, JMLR 15."""

    def __init__(self, name: str, probability: float) -> None:
        super().__init__()
        self.name, self.probability = name, probability
        self.part: tuple[int, int] | None = None  # which of how many of axis 1 this process has, where it is divided

    def forward(self, x: Float[Tensor, "..."], mode: Mode = FAST) -> Float[Tensor, "..."]:
        if not (self.training and self.probability):
            return x
        kept = self._kept(x)
        mode.report(f"kept({self.name})", kept)
        return mode.report(self.name, x * kept / (1 - self.probability))

    def _kept(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """1 for what is kept, 0 for the rest. Processes that share x draw the same mask of all of it."""
        if self.part is not None:
            part, parts = self.part
            whole = x.new_empty((x.shape[0], parts * x.shape[1], *x.shape[2:])).bernoulli_(1 - self.probability)
            return whole.chunk(parts, 1)[part]
        if hasattr(x, "to_local"):
            drawn = torch.empty(x.shape, dtype=x.dtype, device=x.device).bernoulli_(1 - self.probability)
            return spread_like(drawn, x)
        return torch.empty_like(x).bernoulli_(1 - self.probability)
