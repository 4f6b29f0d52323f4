"""What `limpid plan` is asked about a model: how it would be trained, on what."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from limpid.config.domain import Count, NotNegative, Positive, Whole, Within
from limpid.config.options import Checked, require
from limpid.planning.cluster import Attention, Recompute
from limpid.planning.number_formats import BYTES, TRAINING_BYTES, WEIGHT_BYTES


@dataclass(frozen=True, repr=False)
class Options(Checked):
    """How it would be trained, on what."""

    tokens: Positive | None = None
    """Tokens to train on."""
    devices: Count = 1
    """Devices that train together."""
    device: str | None = None
    """Their kind (a100, h100, h200, b200, rtx-4090, mi300x, …), or `here` to measure this machine."""
    memory: Positive | None = None
    """GB (10^9 bytes) of one device; --device knows its own."""
    flops: Positive | None = None
    """FLOP/s of one device's matrix products; --device knows its own."""
    devices_per_node: Count = 8
    """Devices of one node, which send to each other faster than to others."""
    link: Positive | None = None
    """GB/s that a device sends to others of its node, each way; --device knows its own."""
    network: Positive | None = None
    """GB/s that a device sends to other nodes, each way; 50 (400 Gb/s) when left out."""
    step_spread: NotNegative = 0.0
    """Standard deviation of one device's step time over its mean: a step waits for the slowest."""
    price: NotNegative | None = None
    """Dollars per device and hour."""
    utilisation: Annotated[float, Within("(0, 1]", "a share of the peak")] | None = None
    """Share of the peak that devices reach while they work, on whatever they compute; 0.4, or what a run measured, when
    left out. Recomputation and idle pipeline stages come on top.
    """
    batch_size: Count | None = None
    """Sequences of one micro-batch on one replica."""
    context_length: Count | None = None
    """Tokens of a sequence; the model's own when left out."""
    gradient_accumulation_steps: Count = 1
    """Micro-batches per step."""
    precision: str | None = None
    """fp32, bf16, fp16 (mixed, with fp32 masters), bf16_fp32_gradients, bf16_pure, fp64; bf16 for published models. To
    generate in: fp8, int8, int4.
    """
    cache_precision: str | None = None
    """Of keys and values while generating; that of the weights, but at least 16 bits, when left out."""
    zero: Whole = 0
    """ZeRO stage: 1 divides the optimizer's memory among replicas, 2 gradients too, 3 weights too (FSDP)."""
    tensor: Count = 1
    """Devices that share each matrix (tensor parallel, with sequence parallel)."""
    pipeline: Count = 1
    """Stages of a pipeline."""
    interleave: Count = 1
    """Chunks of layers on each stage of the pipeline: less idle time, more to send and to hold."""
    context_parallel: Count = 1
    """Devices that share each sequence while training, some positions each (with fused attention)."""
    recompute: Recompute = "none"
    """What is recomputed in the backward pass instead of saved: nothing, attention's weights, or each whole block."""
    attention: Attention = "fused"
    """Whether attention saves its weights for the backward pass (materialised) or recomputes them in a fused kernel."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.cache_precision is None or self.cache_precision in BYTES,
            f"cache_precision is {self.cache_precision!r}: choose one of {', '.join(BYTES)}",
        )
        known = sorted({*TRAINING_BYTES, *WEIGHT_BYTES})
        require(
            self.precision is None or self.precision in known,
            f"precision is {self.precision!r}: choose one of {', '.join(known)}",
        )


def options_by_name(options: Mapping[str, Any]) -> Options:
    """Options by their names.

    Raises  ConfigError for a name that there is not
    """
    unknown = set(options) - {entry.name for entry in dataclasses.fields(Options)}
    require(not unknown, f"plan has no option {', '.join(sorted(unknown))}: see limpid plan --help")
    return Options(**options)
