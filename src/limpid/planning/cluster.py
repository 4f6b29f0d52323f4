"""How a training step is laid out over devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from limpid.config import OptimizerName
from limpid.config.options import require
from limpid.errors import ConfigError
from limpid.planning.architecture import Architecture
from limpid.planning.number_formats import TRAINING_BYTES

Attention = Literal["fused", "materialised"]
"""Whether attention saves its weights for the backward pass, or recomputes them inside one kernel."""
Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Layout:
    """How a step is laid out over devices."""

    devices: int = 1
    zero: int = 0
    """ZeRO stage: what replicas divide among them instead of each holding it."""
    tensor: int = 1
    pipeline: int = 1
    interleave: int = 1
    """Chunks of layers on each stage of the pipeline."""
    context_parallel: int = 1
    """Devices that share each sequence."""
    batch: int = 1
    """Sequences of one micro-batch on one replica."""
    micro_batches: int = 1
    """Micro-batches per step and replica."""
    context: int = 2048
    """Tokens of a sequence."""
    precision: str = "bf16"
    optimizer: OptimizerName = "adamw"
    recompute: Recompute = "none"
    attention: Attention = "fused"

    def __post_init__(self) -> None:
        counts = "devices", "tensor", "pipeline", "interleave", "context_parallel", "batch", "micro_batches", "context"
        for name in counts:
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}: it must be at least 1")
        require(self.zero in (0, 1, 2, 3), f"zero is {self.zero}: stages are 0, 1, 2, 3")
        require(
            self.precision in TRAINING_BYTES,
            f"precision is {self.precision!r}: for training choose one of {', '.join(TRAINING_BYTES)}",
        )
        require(
            self.devices % (self.tensor * self.pipeline * self.context_parallel) == 0,
            f"devices {self.devices} do not divide into tensor {self.tensor} × pipeline {self.pipeline}"
            + (f" × context_parallel {self.context_parallel}" if self.context_parallel > 1 else "")
            + ": their product must divide the number of devices",
        )
        require(
            self.interleave == 1 or self.pipeline > 1,
            f"interleave is {self.interleave}: chunks of layers are those of a pipeline; give --pipeline too",
        )
        require(
            self.context_parallel == 1 or self.attention == "fused",
            f"context_parallel is {self.context_parallel}: keys of other devices pass through a fused kernel, so leave "
            "--attention out",
        )

    @property
    def replicas(self) -> int:
        """Copies of the model, among which ZeRO divides: data parallel ones, and those that share a sequence."""
        return self.devices // (self.tensor * self.pipeline)

    @property
    def positions_here(self) -> int:
        """Of each sequence, on one device."""
        return -(-self.context // self.context_parallel)


def require_divides(model: Architecture, layout: Layout) -> None:
    """Refuse a layout that the model cannot be cut into."""
    if model.attention_layers and model.num_heads % layout.tensor:
        raise ConfigError(
            f"tensor {layout.tensor} does not divide the {model.num_heads} heads of {model.name}: choose a divisor"
        )
    if model.num_layers < layout.pipeline * layout.interleave:
        chunks = f" × interleave {layout.interleave}" if layout.interleave > 1 else ""
        raise ConfigError(
            f"pipeline {layout.pipeline}{chunks} is more than the {model.num_layers} layers of {model.name}: "
            "choose fewer"
        )
