"""Recorded steps of small models that learn answers, whole or broken on purpose."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.objectives import Objective
from limpid.objectives.answers import token_log_probabilities
from limpid.tracing import Trace, show_step
from limpid.training.record import record_step
from limpid.training.state import State, fresh_state
from limpid.training.step import step

VOCAB, POSITIONS = 19, 9
CONFIG = TrainConfig(
    ModelConfig(vocab_size=VOCAB, d_model=12, num_layers=1, num_heads=3, context_length=9, d_ff=17, init_std=0.3),
    update=UpdateConfig(warmup_steps=1),
    run=RunConfig(precision="fp64", max_steps=4, batch_size=4, threads=1),
)

Draw = Callable[[State, int], MicroBatch]
"""A micro-batch for an objective, by a seed; the state is the reference."""


def at(precision: str, config: TrainConfig = CONFIG) -> TrainConfig:
    return replace(config, run=replace(config.run, precision=precision))


def answers(seed: int, count: int) -> dict[str, np.ndarray]:
    """Answers of several lengths after a prompt of three tokens."""
    rng = np.random.default_rng(seed)
    tokens, place = rng.integers(0, VOCAB, (count, POSITIONS + 1)), np.arange(POSITIONS)
    mask = ((place >= 2) & (place < rng.integers(5, 10, (count, 1)))).astype(np.float32)
    return {"tokens": tokens[:, :-1], "targets": np.where(mask > 0, tokens[:, 1:], -100), "mask": mask}


def log_probabilities(state: State, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Of each whole answer under the model as it stands."""
    tokens, targets = (torch.as_tensor(arrays[name]) for name in ("tokens", "targets"))
    with torch.no_grad():
        scores = token_log_probabilities(state.model, tokens, targets)
    return scores.log_probabilities.double().sum(-1).numpy()


def record(
    folder: Path, objective: Objective, draw: Draw, precision: str, parts: int = 1, config: TrainConfig = CONFIG
) -> Path:
    """The recorded step after an ordinary one, on so many micro-batches."""
    torch.set_num_threads(1)
    config = at(precision, config)
    state = fresh_state(config)
    if state.scaler.is_enabled():
        state.scaler._init_scale = 1024.0
    batch = [draw(state, seed) for seed in range(parts)]
    step(state, batch, config, objective)
    file = folder / "step.safetensors"
    record_step(file, state, batch, config, run="answers", token_text=str, objective=objective)
    return file


def moved(state: State) -> dict[str, np.ndarray]:
    """Every parameter, after all of them were moved at random, away from the reference."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return {name: parameter.detach().numpy().copy() for name, parameter in state.model.named_parameters()}


def opens(file: Path) -> None:
    """What a recorded step shows: a verdict that holds, all of it printed, and an entry of each quantity explained."""
    trace = Trace.open(file, on_disk=False)
    assert trace.step.verdict.verdict == "holds"
    console = Console(record=True, width=200, file=io.StringIO())
    assert show_step(trace, console=console, everything=True) == 0
    shown = console.export_text()
    config = trace.record.config.model
    for quantity in trace.record.objective.quantities(config):
        assert quantity.name.rsplit(".", 1)[-1] in shown
        if not quantity.name.startswith("blocks."):
            entry = trace.explain(quantity.name)
            assert entry.name == quantity.name
            assert entry.made is not None
            trace.explain(f"grad({quantity.name})")
