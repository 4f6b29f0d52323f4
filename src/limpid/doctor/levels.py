"""Where logits stand as a whole, and the rates of a parameter group so far."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from limpid.doctor.calls import find_logits

POSITIONS = 256
"""That are looked at, of all that there are."""


class LogitLevel(NamedTuple):
    """Where logits stand as a whole, which softmax does not see."""

    log_z: float  # mean
    largest: float
    mean: float  # over positions and vocabulary
    classes: int  # how many there are
    format: str

    @classmethod
    def of_output(cls, output: Any) -> LogitLevel | None:
        """Of what a model returned, where that has logits; where it forms them for whoever asks, of some alone."""
        some = getattr(output, "some_logits", None)
        logits = find_logits(output) if some is None else some(POSITIONS)
        return None if logits is None else cls.of(logits)

    @classmethod
    def of(cls, logits: Tensor) -> LogitLevel:
        """On 256 positions or a little more."""
        rows = logits.detach().reshape(-1, logits.shape[-1])
        rows = rows[:: max(1, len(rows) // POSITIONS)].float()
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
