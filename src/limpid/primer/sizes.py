"""Sizes of models for chapters, figures and exercises, counted by limpid's own planning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from limpid.planning.architecture import Architecture, architecture
from limpid.planning.cluster import Layout
from limpid.planning.flops import forward_flops_per_token
from limpid.planning.laws.scaling import APPROACH_3, REFIT, six_n_d
from limpid.planning.memory import cache_bytes_per_token, training
from limpid.planning.number_formats import BYTES, TRAINING_BYTES
from limpid.planning.parameters import COMPONENTS, count
from limpid.planning.published import published
from limpid.primer.exercise import shown

BF16 = BYTES["bf16"]
SMALL = 0.01
"""Billions below which nobody counts in them."""
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


def in_words(billions: float) -> str:
    """So many billions, as a question has it: in figures where it is far less than one."""
    return f"{shown(billions)} billion" if abs(billions) >= SMALL else shown(round(billions * 1e9))


def training_bytes(parameters: float) -> float:
    """Of weights, gradients, masters and both moments."""
    return parameters * sum(bytes_each().values())


def cache_per_token(layers: int, kv_heads: int, d_head: int) -> float:
    """Bytes of one token's keys and values in all layers, two bytes a number."""
    model = architecture(vocab_size=1, d_model=kv_heads * d_head, num_layers=layers, num_heads=kv_heads, d_head=d_head)
    return cache_bytes_per_token(model, BF16)


PARTS = ("weights", "gradients", "optimizer", "activations")


def device_bytes(model: str, layout: Layout) -> dict[str, float]:
    """Of the fullest device in a training step of a published model, by part, and together.

    Raises  ConfigError for a model that cannot be cut so
    """
    figures = {one.name: float(one.value) for one in training(published(model), layout)}
    total = figures["memory.total"]
    states = {part: figures[f"memory.{part}"] for part in PARTS[:3]}
    return {**states, "activations": total - sum(states.values()), "total": total}


def layouts(devices: int = 8, context: int = 2048) -> dict[str, Layout]:
    """Ways to lay a step over so many devices, by what they are called."""
    plain = Layout(devices, context=context)
    return {
        "copies": plain, "copies, ZeRO one": replace(plain, zero=1), "copies, ZeRO two": replace(plain, zero=2),
        "copies, ZeRO three": replace(plain, zero=3), "tensor": replace(plain, tensor=devices),
        "pipeline": replace(plain, pipeline=devices),
        "copies, ZeRO three, all recomputed": replace(plain, zero=3, recompute="full"),
    }  # fmt: skip


NAMES: dict[str, Any] = {
    "published": published, "count": count, "counted": counted, "bytes_each": bytes_each, "six_n_d": six_n_d,
    "training_bytes": training_bytes, "layouts": layouts, "device_bytes": device_bytes,
    "cache_per_token": cache_per_token, "BF16": BF16, "HOFFMANN": APPROACH_3, "REFIT": REFIT,
    "forward_flops_per_token": forward_flops_per_token,
}  # fmt: skip
"""What a chapter may compute with."""
