"""Recorded steps of small engines, whole or broken on purpose."""

from pathlib import Path

import numpy as np
import torch

from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.training.record import record_step
from limpid.training.state import fresh_state
from limpid.training.step import step

SMALL = {
    "vocab_size": 29,
    "context_length": 11,
    "d_model": 12,
    "num_layers": 2,
    "num_heads": 3,
    "d_ff": 17,
    "init_std": 0.3,
}
VARIANTS: dict[str, dict] = {
    "llama": {},
    "shared keys in a window": {
        "num_heads": 6, "d_head": 2, "num_kv_heads": 2, "attention_window": 3, "windowed_blocks": (1,),
    },
    "gpt-2": {
        "norm": "layer", "positions": "learned", "mlp": "plain", "activation": "gelu_tanh",
        "attention_bias": True, "attention_output_bias": True, "mlp_bias": True,
    },
    "the paper's": {
        "norm": "layer", "norm_placement": "post", "positions": "sinusoidal", "mlp": "plain", "activation": "relu",
    },
    "qwen3": {"qk_norm": True, "tied": False, "d_head": 6, "num_kv_heads": 1},
    "interleaved, stretched": {"rotary_layout": "interleaved", "rotary_scaling": "llama3", "rotary_factor": 2.0},
    "squared relu, nowhere": {"positions": "none", "mlp": "plain", "activation": "relu2", "num_kv_heads": 1},
    "geglu with biases": {"activation": "gelu", "attention_bias": True, "mlp_bias": True},
    "dropout": {"dropout": 0.3, "positions": "learned"},
    "wide": {"d_model": 32, "d_head": 16, "num_kv_heads": 1, "attention_window": 5, "d_ff": 48},
    "wide gpt-2": {
        "d_model": 48, "d_ff": 64, "norm": "layer", "positions": "learned", "mlp": "plain", "activation": "gelu",
        "attention_bias": True, "attention_output_bias": True, "mlp_bias": True,
    },
}  # fmt: skip


def configuration(variant: str, precision: str, accumulation: int = 1, rule: str = "adamw") -> TrainConfig:
    return TrainConfig(
        ModelConfig(**(SMALL | VARIANTS[variant])),
        update=UpdateConfig(optimizer=rule, warmup_steps=1, max_grad_norm=0.5),
        run=RunConfig(
            max_steps=9, batch_size=4, precision=precision, gradient_accumulation_steps=accumulation, threads=1
        ),
    )


def batch(config: TrainConfig, number: int) -> list[MicroBatch]:
    """Micro-batches in which labels fall unevenly."""
    rng = np.random.default_rng(number)
    found = []
    for part in range(config.run.gradient_accumulation_steps):
        tokens = rng.integers(0, config.model.vocab_size, (4, config.model.context_length + 1))
        missing = rng.random((4, config.model.context_length)) < 0.1 + 0.5 * (part % 2)
        found.append(
            MicroBatch({"tokens": tokens[:, :-1], "targets": np.where(missing, -100, tokens[:, 1:])}, (0, 11, 22, 33))
        )
    return found


def record(folder: Path, config: TrainConfig, before: int = 2) -> Path:
    """The recorded step after `before` ordinary ones."""
    torch.set_num_threads(1)
    state = fresh_state(config)
    if state.scaler.is_enabled():
        state.scaler._init_scale = 1024.0
    for number in range(1, before + 1):
        step(state, batch(config, number), config)
    file = folder / "step.safetensors"
    record_step(file, state, batch(config, before + 1), config, run="test", token_text=lambda token: f"<{token}>")
    return file
