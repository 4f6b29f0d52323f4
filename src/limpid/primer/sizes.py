"""Sizes of models for chapters, figures and exercises, counted by limpid's own planning."""

from __future__ import annotations

from typing import Any

from limpid.planning.architecture import Architecture, architecture
from limpid.planning.flops import forward_flops_per_token
from limpid.planning.laws.scaling import APPROACH_3, REFIT, six_n_d
from limpid.planning.memory import cache_bytes_per_token
from limpid.planning.number_formats import BYTES, TRAINING_BYTES
from limpid.planning.parameters import COMPONENTS, count
from limpid.planning.published import published

BF16 = BYTES["bf16"]
MOMENTS = 2
"""That AdamW keeps of each parameter."""


def counted(model: Architecture) -> dict[str, int]:
    """Parameters of each component that the model has."""
    return {name: number for name in COMPONENTS if (number := count(model, name))}


def bytes_each() -> dict[str, float]:
    """Bytes per parameter of training with AdamW in mixed precision, by what they hold."""
    one = TRAINING_BYTES["bf16"]
    return {"weight": one.weights, "gradient": one.gradients, "master": one.master,
            "mean of gradients": one.moment, "mean of squares": one.moment}  # fmt: skip


def training_bytes(parameters: float) -> float:
    """Of weights, gradients, masters and both moments."""
    return parameters * sum(bytes_each().values())


def cache_per_token(layers: int, kv_heads: int, d_head: int) -> float:
    """Bytes of one token's keys and values in all layers, two bytes a number."""
    model = architecture(vocab_size=1, d_model=kv_heads * d_head, num_layers=layers, num_heads=kv_heads, d_head=d_head)
    return cache_bytes_per_token(model, BF16)


NAMES: dict[str, Any] = {
    "published": published, "count": count, "counted": counted, "bytes_each": bytes_each, "six_n_d": six_n_d,
    "training_bytes": training_bytes, "cache_per_token": cache_per_token, "BF16": BF16, "HOFFMANN": APPROACH_3,
    "REFIT": REFIT, "forward_flops_per_token": forward_flops_per_token,
}  # fmt: skip
"""What a chapter may compute with."""
