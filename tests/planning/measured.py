"""The peak of allocated tensors in one training step, as PyTorch's profiler sees it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.model import Transformer, initialise
from limpid.model.kernels import native_product
from limpid.model.narrow import Narrow
from limpid.objectives import POLICY
from limpid.quantities import parameters
from limpid.training.precision import arithmetic
from limpid.training.state import State, make_scaler
from limpid.training.step import step
from limpid.training.update import make_optimizer


def configured(**options: Any) -> TrainConfig:
    """A small training configuration; options go where they belong."""
    base = {"vocab_size": 1024, "num_layers": 3, "d_model": 128, "num_heads": 4, "context_length": 64, "batch_size": 8,
            "precision": "fp32"} | options  # fmt: skip
    sections = [
        kind(**{key: value for key, value in base.items() if key in {entry.name for entry in fields(kind)}})
        for kind in (ModelConfig, UpdateConfig, RunConfig)
    ]
    return TrainConfig(model=sections[0], update=sections[1], run=sections[2])


def _held(tensor: torch.Tensor) -> int:
    if not isinstance(tensor, Narrow):
        return tensor.nbytes
    return sum(getattr(tensor, part).nbytes for part in tensor.__tensor_flatten__()[0])


def peak_bytes(config: TrainConfig) -> int:
    """Bytes of all tensors at the worst moment of the second step, when the optimizer has its memory; of one thread,
    since each other one brings buffers of its own to products in 16 bits.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _peak_bytes(config)
    finally:
        torch.set_num_threads(threads)


def _peak_bytes(config: TrainConfig) -> int:
    native_product.ROOMS.by_size.clear()
    formats, rng = arithmetic(config.run.precision), np.random.default_rng(0)
    model = initialise(Transformer(config.model, formats.compute).to(formats.parameters), 0)
    for parameter in parameters(config.model, config.update.frozen):
        model.get_parameter(parameter.name).requires_grad_(parameter.trained)
    model.recomputed = config.run.gradient_checkpointing == "on"
    state = State({POLICY: model}, make_optimizer(model, config.update), make_scaler(formats, torch.device("cpu")))
    size = (config.run.batch_size, config.model.context_length)

    def batch() -> tuple[MicroBatch, ...]:
        rows = [rng.integers(0, config.model.vocab_size, size) for _ in range(config.run.gradient_accumulation_steps)]
        return tuple(MicroBatch({"tokens": tokens, "targets": np.roll(tokens, -1, 1)}, ()) for tokens in rows)

    step(state, batch(), config)
    second = batch()
    state.optimizer.zero_grad(set_to_none=True)
    moments = [value for entry in state.optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
    held = sum(map(_held, (*model.parameters(), *moments))) + native_product.held_bytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(state, second, config)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return held + peak
