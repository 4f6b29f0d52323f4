"""Where logits stand as a whole, and the rates of a parameter group so far."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LogitLevel(NamedTuple):
    """Where logits stand as a whole, which softmax does not see."""

    log_z: float  # mean
    largest: float
    mean: float  # over positions and vocabulary
    classes: int  # how many there are
    format: str

    @classmethod
    def of(cls, logits: Tensor) -> LogitLevel:
        """On up to 256 positions."""
        rows = logits.detach().reshape(-1, logits.shape[-1])
        rows = rows[:: max(1, len(rows) // 256)].float()
        log_z, largest, mean = torch.stack([rows.logsumexp(-1).mean(), rows.abs().max(), rows.mean()]).tolist()
        return cls(log_z, largest, mean, rows.shape[-1], str(logits.dtype).removeprefix("torch."))


class GroupRate:
    """The rates of a parameter group so far."""

    def __init__(self, rate: float) -> None:
        self.low = self.high = self.last = rate
        self.updates = self.changes = 0

    def add(self, rate: float) -> None:
        self.updates += 1
        self.changes += rate != self.last
        self.low, self.high, self.last = min(self.low, rate), max(self.high, rate), rate
