"""What `limpid plan` is asked about a model: how it would be trained, on what."""

from __future__ import annotations

import math
from dataclasses import dataclass

from limpid.config.options import check_words, require
from limpid.plan.cluster import Attention, Recompute
from limpid.plan.number_formats import TRAINING_BYTES, WEIGHT_BYTES

AMOUNTS = {"tokens": "a number of tokens", "memory": "gigabytes of one device", "flops": "FLOP/s of one device"}


@dataclass(frozen=True)
class Options:
    """How it would be trained, on what."""

    tokens: float | None = None
    """Tokens to train on."""
    devices: int = 1
    """Devices that train together."""
    device: str | None = None
    """Their kind (a100, h100, h200, b200, rtx-4090, mi300x, …), or `here` to measure this machine."""
    memory: float | None = None
    """GB (10^9 bytes) of one device; --device knows its own."""
    flops: float | None = None
    """FLOP/s of one device's matrix products; --device knows its own."""
    price: float | None = None
    """Dollars per device and hour."""
    utilisation: float | None = None
    """Share of the peak that devices reach while they work, on whatever they compute; 0.4, or what a run measured, when
    left out. Recomputation and idle pipeline stages come on top.
    """
    batch_size: int | None = None
    """Sequences of one micro-batch on one replica."""
    context_length: int | None = None
    """Tokens of a sequence; the model's own when left out."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per step."""
    precision: str | None = None
    """fp32, bf16, fp16 (mixed, with fp32 masters), bf16_pure, fp64; bf16 for published models. To generate in: fp8,
    int8, int4.
    """
    zero: int = 0
    """ZeRO stage: 1 divides the optimizer's memory among replicas, 2 gradients too, 3 weights too (FSDP)."""
    tensor: int = 1
    """Devices that share each matrix (tensor parallel, with sequence parallel)."""
    pipeline: int = 1
    """Stages of a pipeline."""
    recompute: Recompute = "none"
    """What is recomputed in the backward pass instead of saved: nothing, attention's weights, or each whole block."""
    attention: Attention = "fused"
    """Whether attention saves its weights for the backward pass (materialised) or recomputes them in a fused kernel."""

    def __post_init__(self) -> None:
        check_words(self)
        for name in ("devices", "batch_size", "context_length", "gradient_accumulation_steps", "tensor", "pipeline"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} is {value}: it must be at least 1")
        for name, unit in AMOUNTS.items():
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, f"{name} is {value}: {unit}, above 0")
        require(
            self.price is None or 0 <= self.price < math.inf,
            f"price is {self.price}: dollars per device and hour, not negative",
        )
        require(
            self.utilisation is None or 0 < self.utilisation <= 1,
            f"utilisation is {self.utilisation}: it is a share of the peak, above 0 and at most 1",
        )
        known = sorted({*TRAINING_BYTES, *WEIGHT_BYTES})
        require(
            self.precision is None or self.precision in known,
            f"precision is {self.precision!r}: choose one of {', '.join(known)}",
        )
