"""One training step at speed: forward, loss, backward, clip, update. Read it beside maths/step.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from limpid.config import TrainConfig
from limpid.data.batches import MicroBatch
from limpid.model import Transformer
from limpid.model.observe import observing, report
from limpid.objectives.language_model import Surprise, count_labels, language_model, log_probabilities
from limpid.schedule import learning_rate
from limpid.training.precision import Arithmetic, device
from limpid.training.update import clip


@dataclass(frozen=True)
class Outcome:
    """What one step did; every loss as it was, finite or not."""

    number: int
    loss: float  # nats per label, over all labels of the step
    micro_losses: tuple[float, ...]  # each micro-batch's share of the loss; they add up to it
    labels: tuple[int, ...]  # per micro-batch
    grad_norm: float  # before clipping
    learning_rate: float
    loss_scale: float  # 1 unless float16
    updated: bool  # False when gradients were not finite: parameters are as before

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass
class State:
    """Everything a step changes."""

    model: Transformer
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0  # steps taken
    updates: int = 0  # updates made: fewer than steps when float16 overflowed


def make_scaler(arithmetic: Arithmetic) -> torch.amp.GradScaler:
    """Loss scaling for float16; for other formats one that does nothing."""
    return torch.amp.GradScaler(device().type, enabled=arithmetic.scales_loss)


def step(state: State, batch: Sequence[MicroBatch], config: TrainConfig) -> Outcome:
    """Take the next step on its micro-batches."""
    losses, labels = backward(state, batch, config)
    return update(state, losses, labels, config)


def backward(state: State, batch: Sequence[MicroBatch], config: TrainConfig) -> tuple[list[float], list[int]]:
    """Forward, loss and backward of every micro-batch; gradients add up to those of the mean over all labels.

    They stay multiplied by the loss scale until the update.
    """
    number = state.step + 1
    if not state.model.training:
        state.model.train()
    state.optimizer.zero_grad(set_to_none=True)
    targets = [torch.as_tensor(micro.targets) for micro in batch]
    labels = [count_labels(target) for target in targets]
    losses = []
    for index, (micro, target) in enumerate(zip(batch, targets, strict=True)):
        if config.model.dropout:
            torch.manual_seed(dropout_seed(config.run.seed, number, index))
        tokens, scale = torch.as_tensor(micro.inputs).to(device()), state.scaler.get_scale()
        loss = mean_surprise(state.model, tokens, target.to(device()), max(1, sum(labels)), scale)
        state.scaler.scale(loss).backward()
        losses.append(float(loss.detach()))
    return losses, labels


def update(state: State, losses: list[float], labels: list[int], config: TrainConfig) -> Outcome:
    """Clip and update, unless a gradient is not finite: then nothing moves."""
    number = state.step + 1
    rate = learning_rate(number, config.run.max_steps, config.update)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    scale = state.scaler.get_scale()
    state.scaler.unscale_(state.optimizer)
    norm = clip(state.model, config.update.max_grad_norm)
    updated = math.isfinite(norm)
    if updated or state.scaler.is_enabled():
        state.scaler.step(state.optimizer)  # float16: skips by itself when gradients overflowed
        state.scaler.update()
    state.step, state.updates = number, state.updates + updated
    return Outcome(number, sum(losses), tuple(losses), tuple(labels), norm, rate, scale, updated)


def mean_surprise(model: Transformer, tokens: Tensor, targets: Tensor, labels: int, scale: float = 1.0) -> Tensor:
    """The loss of one micro-batch: straight from the stream, or step by step when somebody wants to see the quantities.

    `scale` is what it will be multiplied by before backward.
    """
    if not observing():
        end = model(tokens, formed=False)
        matrix = end.matrix if torch.is_grad_enabled() else end.matrix.detach()
        loss: Tensor = Surprise.apply(end.stream, matrix, targets, labels, scale)
        return loss
    surprises = report("log_probabilities", log_probabilities(model(tokens)))
    return report("loss", language_model(surprises, targets, labels))


def dropout_seed(seed: int, number: int, micro_batch: int) -> int:
    """Dropout masks, like batches, are a function of (seed, step, micro-batch)."""
    return int(np.random.SeedSequence((seed, number, micro_batch)).generate_state(1, np.uint64)[0] >> 1)
