"""Dead units of the MLPs: those that no text at hand wakes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from limpid.inspect.watch import watched
from limpid.model import Transformer

FAINT = 1e-3
"""Share of the block's rms below which a unit that cannot be exactly 0 counts as dead."""


@dataclass(frozen=True)
class Units:
    """The hidden units of one block's MLP."""

    block: int
    count: int
    dead: tuple[int, ...]
    rms: float  # of the activation, over all units and positions
    rule: str  # when a unit counts as dead

    @property
    def share(self) -> float:
        return len(self.dead) / self.count


def units(model: Transformer, batches: Iterable[Int[Tensor, "batch position"]]) -> tuple[tuple[Units, ...], int]:
    """Each block's units, and over how many positions they were watched."""
    config = model.config
    largest = torch.zeros(config.num_layers, config.d_ff, dtype=torch.float64)
    squares = torch.zeros(config.num_layers, dtype=torch.float64)
    positions = 0
    for tokens in batches:
        seen = watched(model, tokens, lambda name: name.endswith("mlp.hidden"))
        positions += tokens.numel()
        for block in range(config.num_layers):
            hidden = seen[f"blocks.{block}.mlp.hidden"].flatten(0, 1).double()
            largest[block] = torch.maximum(largest[block], hidden.abs().amax(0))
            squares[block] += hidden.square().sum()
    rms = (squares / max(1, positions * config.d_ff)).sqrt()
    exact = config.activation in ("relu", "relu2")
    rule = "its activation is 0 everywhere" if exact else f"its largest |activation| is below {FAINT:g} of the rms"
    limit = torch.zeros_like(rms) if exact else FAINT * rms
    return tuple(
        Units(
            block,
            config.d_ff,
            tuple(torch.nonzero(largest[block] <= limit[block]).flatten().tolist()),
            float(rms[block]),
            rule,
        )
        for block in range(config.num_layers)
    ), positions
