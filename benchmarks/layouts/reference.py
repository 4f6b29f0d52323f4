"""One process, and how far rounding may take each step of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from limpid.comparison.observed import Observed
from limpid.comparison.rounding_spread import spread
from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.maths.rounding import FORMATS
from limpid.training.mesh import Mesh
from limpid.training.state import State, fresh_state
from limpid.training.step import step

MICRO_BATCHES = 4


def configuration(steps: int, blocks: int = 2) -> TrainConfig:
    """Small, and of many parts: shared keys, normed queries, a tied table; gradients are clipped."""
    return TrainConfig(
        ModelConfig(
            vocab_size=64, context_length=16, d_model=32, num_layers=blocks, num_heads=8, num_kv_heads=4, d_ff=64,
            qk_norm=True,
        ),
        update=UpdateConfig(optimizer="muon", warmup_steps=5, max_grad_norm=0.5),
        run=RunConfig(
            max_steps=steps, batch_size=1, gradient_accumulation_steps=MICRO_BATCHES, precision="fp32", threads=1
        ),
    )  # fmt: skip


def batches(config: TrainConfig) -> list[list[MicroBatch]]:
    """Rows for every step that can be learned, each micro-batch with another number of labels."""
    rng, model = np.random.default_rng(3), config.model
    drawn = []
    for place in range(config.run.max_steps * MICRO_BATCHES):
        tokens = rng.integers(0, 8, (config.run.batch_size, model.context_length + 1)).cumsum(1) % model.vocab_size
        targets = tokens[:, 1:].copy()
        targets[0, 10 + place % MICRO_BATCHES :] = -100
        drawn.append(MicroBatch({"tokens": tokens[:, :-1], "targets": targets}))
    return [drawn[at : at + MICRO_BATCHES] for at in range(0, len(drawn), MICRO_BATCHES)]


@dataclass
class Step:
    """One step of one process: where it began, what it found, and how far from that rounding may lead."""

    weights: dict[str, Tensor]  # before it
    loss: float
    norm: float
    gradients: dict[str, Tensor]
    loss_limit: float
    norm_limit: float
    gradient_limits: dict[str, Tensor]  # root mean square over the last axis


class Kept:
    """A recorder that keeps a step's gradients."""

    gradients_of: dict[str, Tensor]

    def observe(self, name: str, value: Tensor) -> Tensor:
        return value

    def gradients(self, state: State) -> None:
        every = state.model.named_parameters()
        self.gradients_of = {name: one.grad.detach().clone() for name, one in every if one.grad is not None}


def walked(config: TrainConfig, every: Sequence[Sequence[MicroBatch]]) -> list[Step]:
    """The run of one process; of each step the bounds of two variants that both round."""
    state, steps = fresh_state(config, Mesh(torch.device("cpu"))), []
    for batch in every:
        weights = {name: one.detach().clone() for name, one in state.model.named_parameters()}
        kept = Kept()
        outcome = step(state, batch, config, recorder=kept)
        tokens, targets = (np.concatenate([micro[name] for micro in batch]) for name in ("tokens", "targets"))
        exact = {name: one.double().numpy() for name, one in weights.items()}
        form = FORMATS["fp32"]
        seen = Observed("one process", "fast", exact, tokens, targets, compute=form, kept=form, summed=form)
        seen.gradients = {name: one.double().numpy() for name, one in kept.gradients_of.items()}
        bounds = spread(config.model, seen, backward=True)
        limits = {name: torch.as_tensor(2 * np.asarray(bounds.gradient_limits[name])) for name in seen.gradients}
        loss_limit = 2 * float(bounds.value_limits["loss"])
        steps.append(
            Step(weights, outcome.loss, outcome.grad_norm, kept.gradients_of, loss_limit, 2 * bounds.grad_norm_limit,
                 limits)
        )  # fmt: skip
    return steps
