"""Dropout that reports its mask: a step can only be redone when it is known what was dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from limpid.model.observe import FAST, Mode
from limpid.model.spread import spread_like

DRAWS_PER_WORD = 4
"""Of 16 bits each, in a random word."""


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

    def _kept(self, x: Float[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """What is kept. Processes that share x draw the same mask of all of it."""
        if self.part is not None:
            part, parts = self.part
            return self._drawn((x.shape[0], parts * x.shape[1], *x.shape[2:]), x.device).chunk(parts, 1)[part]
        return spread_like(self._drawn(x.shape, x.device), x)

    def _drawn(self, shape: Sequence[int], device: torch.device) -> Bool[Tensor, "..."]:
        """True with 1 - `probability`, from 16 random bits each, in a fourth of `bernoulli_`'s time on a processor."""
        count = math.prod(shape)
        words = torch.empty(-(-count // DRAWS_PER_WORD), dtype=torch.int64, device=device)
        bits = words.random_(-(2**63), None).view(torch.int16)[:count].view(*shape)
        return bits >= min(round(self.probability * 2**16), 2**16 - 1) - 2**15
