"""Memory per device in the standard account: states under ZeRO, activations, logits; weights and cache for decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from limpid.config import OptimizerName
from limpid.config.options import require
from limpid.errors import ConfigError
from limpid.plan.activations import Recompute, block_numbers, per_block
from limpid.plan.architecture import Architecture
from limpid.plan.figure import Figure, figure, total
from limpid.plan.parameters import count

ZERO = "Rajbhandari et al. 2020, section 5 and figure 1, arXiv:1910.02054"
SHARD = "Shoeybi et al. 2019, section 3, arXiv:1909.08053"
CACHE = "Pope et al. 2022, section 3.3, arXiv:2211.05102"
MegaPrecision = Literal["fp32", "bf16", "fp16", "bf16_pure", "fp64"]


@dataclass(frozen=True)
class States:
    """Bytes per parameter while training."""

    weights: int
    gradients: int
    master: int
    moment: int
    """Of each moment that the update rule remembers."""
    compute: int
    """Of a number in an activation."""


STATES: dict[str, States] = {
    "fp64": States(8, 8, 0, 8, 8),
    "fp32": States(4, 4, 0, 4, 4),
    "bf16": States(2, 2, 4, 4, 2),
    "fp16": States(2, 2, 4, 4, 2),
    "bf16_pure": States(2, 2, 0, 2, 2),
}
"""Mixed precision: fp32 masters and moments beside narrow weights and gradients, 16 bytes with Adam (ZeRO, 3.1)."""
MOMENTS: dict[str, int] = {"adamw": 2, "muon": 1, "adam": 2, "momentum": 1, "sgd": 0}
WEIGHT_BYTES = {
    "fp64": 8.0,
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "bf16_pure": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
}


@dataclass(frozen=True)
class Layout:
    """How a step is laid out over devices."""

    devices: int = 1
    zero: int = 0
    tensor: int = 1
    pipeline: int = 1
    batch: int = 1
    """Sequences of one micro-batch on one replica."""
    micro_batches: int = 1
    """Micro-batches per step and replica."""
    context: int = 2048
    precision: str = "bf16"
    optimizer: OptimizerName = "adamw"
    recompute: Recompute = "none"
    formed: bool = False
    """Attention keeps its weights instead of being fused."""

    def __post_init__(self) -> None:
        for name in ("devices", "tensor", "pipeline", "batch", "micro_batches", "context"):
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}: it must be at least 1")
        require(self.zero in (0, 1, 2, 3), f"zero is {self.zero}: stages are 0, 1, 2, 3")
        require(
            self.precision in STATES, f"precision is {self.precision!r}: for training choose one of {', '.join(STATES)}"
        )
        require(
            self.devices % (self.tensor * self.pipeline) == 0,
            f"devices {self.devices} do not divide into tensor {self.tensor} × pipeline {self.pipeline}: "
            "their product must divide the number of devices",
        )

    @property
    def replicas(self) -> int:
        """Copies of the model that data parallelism feeds, among which ZeRO divides."""
        return self.devices // (self.tensor * self.pipeline)


def check(model: Architecture, layout: Layout) -> None:
    """Refuse a layout that the model cannot be cut into."""
    if model.num_heads % layout.tensor:
        raise ConfigError(
            f"tensor {layout.tensor} does not divide the {model.num_heads} heads of {model.name}: choose a divisor"
        )
    if model.num_layers < layout.pipeline:
        raise ConfigError(
            f"pipeline {layout.pipeline} is more than the {model.num_layers} layers of {model.name}: choose fewer"
        )


def training(model: Architecture, layout: Layout) -> list[Figure]:
    """Every part of the memory of the fullest device, and the total."""
    check(model, layout)
    states = STATES[layout.precision]
    share = stage_parameters(model, layout)
    d, z = layout.replicas, layout.zero
    moments = MOMENTS[layout.optimizer]
    optimizer_bytes = states.master + moments * states.moment
    found = [share]
    for name, each, stage, note in (
        ("weights", states.weights, 3, ""),
        ("gradients", states.gradients, 2, ""),
        ("optimizer", optimizer_bytes, 1, f"{states.master} of a master and {moments} × {states.moment} of moments"),
    ):
        equation = "P * bytes_each / replicas" if z >= stage and d > 1 else "P * bytes_each"
        found.append(figure(f"memory.{name}", "bytes", equation, {"P": share, "bytes_each": each, "replicas": d}, ZERO,
                            note))  # fmt: skip
    found += _activations(model, layout, states)
    parts = [one for one in found if one.name.count(".") == 1 and one.unit == "bytes" and "_per_" not in one.name]
    return [*found, total("memory.total", parts)]


def stage_parameters(model: Architecture, layout: Layout) -> Figure:
    """Parameters of the fullest pipeline stage, divided among its tensor-parallel devices."""
    ends = count(model, "embedding"), count(model, "logits")
    blocks = count(model) - sum(ends)
    if layout.pipeline == 1 and layout.tensor == 1:
        return figure("memory.parameters_here", "parameters", "N", {"N": count(model)})
    numbers = {"blocks": blocks, "L": model.num_layers, "p": layout.pipeline, "t": layout.tensor,
               "embedding": ends[0], "logits": ends[1]}  # fmt: skip
    end = "embedding + logits" if layout.pipeline == 1 else "max(embedding, logits)"
    if model.tied and layout.pipeline > 1:
        end = "embedding"  # the last stage holds a copy of the output matrix
    return figure("memory.parameters_here", "parameters", f"(blocks * ceil(L / p) / L + {end}) / t", numbers, SHARD,
                  "the stage with most: an equal share of blocks, and one end of the model")  # fmt: skip


def _activations(model: Architecture, layout: Layout, states: States) -> list[Figure]:
    numbers = block_numbers(model, layout.batch, layout.context, states.compute)
    block = per_block(model, numbers, layout.tensor, layout.recompute, layout.formed)
    flight = min(layout.pipeline, layout.micro_batches)
    activations = figure(
        "memory.activations", "bytes", "ceil(L / p) * in_flight * per_block",
        {"L": model.num_layers, "p": layout.pipeline, "in_flight": flight, "per_block": block},
        "Narayanan et al. 2021, section 2.2, arXiv:2104.04473",
        "in_flight: micro-batches that the first stage has begun before their backward pass",
    )  # fmt: skip
    found = [block, activations]
    if layout.recompute == "full":
        again = per_block(model, numbers, layout.tensor, "none", layout.formed)
        found.append(figure("memory.recomputed", "bytes", "per_block", {"per_block": again},
                            note="one block at a time, while it is computed again"))  # fmt: skip
    if model.head:
        last = {"s": layout.context, "b": layout.batch, "V": model.vocab_size, "t": layout.tensor, "c": states.compute}
        found.append(figure("memory.logits", "bytes", "s * b * V * (c + max(4, c)) / t", last,
                            "Korthikanti et al. 2022, section 4.3, arXiv:2205.05198",
                            "the logits, and their log-probabilities in at least fp32"))  # fmt: skip
    return found


def cache_bytes_per_token(model: Architecture, bytes_per_number: float) -> float:
    """Keys and values of one token in all layers."""
    if model.kv_latent:
        return model.num_layers * (model.kv_latent + model.d_rotary) * bytes_per_number
    return 2 * model.num_layers * model.num_kv_heads * model.d_head * bytes_per_number


def decoding(model: Architecture, batch: int, context: int, precision: str) -> list[Figure]:
    """Memory of generating: weights, and the cache of keys and values."""
    require(precision in WEIGHT_BYTES, f"precision is {precision!r}: choose one of {', '.join(WEIGHT_BYTES)}")
    c = max(2.0, WEIGHT_BYTES[precision])
    weights = figure("decoding.weights", "bytes", "N * bytes_each",
                     {"N": count(model), "bytes_each": WEIGHT_BYTES[precision]})  # fmt: skip
    numbers = {"L": model.num_layers, "kv_heads": model.num_kv_heads, "d_head": model.d_head, "c": c,
               "latent": model.kv_latent, "rotary": model.d_rotary}  # fmt: skip
    equation = "L * (latent + rotary) * c" if model.kv_latent else "2 * L * kv_heads * d_head * c"
    source = "DeepSeek-AI 2024, section 2.1, arXiv:2405.04434" if model.kv_latent else CACHE
    token = figure("decoding.cache_per_token", "bytes", equation, numbers, source, "one key and one value per layer")
    if model.windowed_layers and context > model.window:
        numbers |= {"W": model.windowed_layers, "window": model.window, "s": context, "b": batch}
        cache = figure("decoding.cache", "bytes", "2 * kv_heads * d_head * c * b * ((L - W) * s + W * window)", numbers,
                       CACHE, "W layers look back over the window only")  # fmt: skip
    else:
        cache = figure("decoding.cache", "bytes", "b * s * cache_per_token",
                       {"b": batch, "s": context, "cache_per_token": token}, CACHE)  # fmt: skip
    return [weights, token, cache, total("decoding.total", [weights, cache])]


def state_bytes(
    parameters: float, stage: int, devices: int, weights: float, gradients: float, optimizer: float
) -> float:
    """Bytes of model states per device under a ZeRO stage. Source: Rajbhandari et al. 2020, figure 1."""
    split = [1 if stage < needed else devices for needed in (3, 2, 1)]
    return parameters * sum(each / among for each, among in zip((weights, gradients, optimizer), split, strict=True))
