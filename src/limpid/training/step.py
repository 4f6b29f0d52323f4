"""One training step at speed: forward, loss, backward, clip, rate, update. Read it beside maths/step.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from limpid.config import TrainConfig
from limpid.data.batches import MicroBatch
from limpid.model import Transformer
from limpid.model.dropout import seed_of
from limpid.model.observe import Mode, Observe, Path
from limpid.objectives import NEXT_TOKEN, POLICY, Least, Loss, Mean, Metric, Most, Objective
from limpid.objectives.objective import in_memory
from limpid.schedule import learning_rate
from limpid.training import average
from limpid.training.mesh import Mesh
from limpid.training.parallel.stage import Work
from limpid.training.state import State
from limpid.training.update import clip, update


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
    metrics: Mapping[str, float] = field(default_factory=dict)  # the objective's own, over the whole step

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Recorder(Protocol):
    """Sees a step while it is taken, and changes nothing."""

    def observe(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Called with every quantity that the fast path forms."""

    def gradients(self, state: State) -> None:
        """Called once all gradients are there, multiplied by the loss scale, before clipping."""


def step(
    state: State,
    batch: Sequence[MicroBatch],
    config: TrainConfig,
    objective: Objective = NEXT_TOKEN,
    recorder: Recorder | None = None,
    looked_into: bool = False,
) -> Outcome:
    """Take the next step on its micro-batches: every process is given all of them, and takes its share.

    looked_into  whether somebody besides a recorder sees the operations of its passes: these are then made one by one
    """
    number, scale = state.step + 1, state.scaler.get_scale()
    observe = None if recorder is None else recorder.observe
    losses = backward(state, batch, config, objective, observe=observe, looked_into=looked_into)
    state.mesh.at(number, "clip")
    if recorder is not None:
        recorder.gradients(state)
    norm = clip(state.model, state.optimizer, state.scaler, config.update.max_grad_norm, state.pipeline)
    state.mesh.at(number, "update")
    rate = learning_rate(number, config.run.max_steps, config.update)
    finite = norm.isfinite() if isinstance(norm, torch.Tensor) else math.isfinite(norm)
    updated = update(state.optimizer, state.scaler, rate, finite=finite)
    state.step, state.updates = number, state.updates + updated
    if updated:
        average.move(state.average, state.model, config.update, state.updates)
    shares = state.mesh.joined([float(loss.value) for loss in losses], len(batch))
    labels = tuple(objective.labels(micro) for micro in batch)
    metrics = metrics_of(losses, state.mesh, len(batch))
    return Outcome(number, sum(shares), shares, labels, float(norm), rate, scale, updated, metrics)


def backward(
    state: State,
    batch: Sequence[MicroBatch],
    config: TrainConfig,
    objective: Objective = NEXT_TOKEN,
    path: Path = "fast",
    observe: Observe | None = None,
    looked_into: bool = False,
) -> list[Loss]:
    """Forward, loss and backward of this process's micro-batches; over all processes gradients add up to those of the
    mean over all labels.

    They are left multiplied by the loss scale.
    """
    mode = Mode(path, observe, state.scaler.get_scale())
    if not state.model.training:  # asking every module takes a millisecond
        state.model.train()
    state.optimizer.zero_grad(set_to_none=True)
    labels, losses = max(1, sum(objective.labels(micro) for micro in batch)), []
    mine = state.mesh.share(list(enumerate(batch)))
    if state.pipeline is not None:
        state.scaler.scale(torch.zeros((), device=state.mesh.device))  # stages without a loss need its scale, too

        def ends(model: Transformer, micro: MicroBatch) -> tuple[torch.Tensor, Loss]:
            loss = objective.loss({POLICY: model}, micro, labels, mode)
            return state.scaler.scale(loss.value), in_memory(loss)

        enter = partial(state.mesh.at, state.step + 1)
        seeds = [mask_seed(config, state.step + 1, index) for index, _ in mine]
        return state.pipeline.backward(Work([micro for _, micro in mine], ends, mode, enter, seeds))
    whole = path == "fast" and observe is None and not looked_into and objective == NEXT_TOKEN
    graphs = state.graphs if whole else None
    for index, micro in mine:
        state.mesh.before_backward(state.model, last=index == mine[-1][0])
        state.model.mask_seed = mask_seed(config, state.step + 1, index)
        state.mesh.at(state.step + 1, "forward")
        value = None if graphs is None else graphs.loss(micro, labels, mode)
        # forward, loss (nats per label)
        loss = Loss(value) if value is not None else objective.loss(state.models, micro, labels, mode)
        state.mesh.at(state.step + 1, "backward")
        state.scaler.scale(loss.value).backward()  # backward
        losses.append(Loss(loss.value.detach(), loss.metrics))
    state.mesh.after_backward(state.model)
    return losses


def begin_next(state: State, batch: Sequence[MicroBatch], objective: Objective = NEXT_TOKEN) -> None:
    """Have a graphics processor work on the next step while this one is told of, where it is launched as a whole.

    The gradients of this one are no more then, and weights must stay as they are until `step` is given the very batch.
    """
    if state.graphs is not None and objective == NEXT_TOKEN:
        labels = max(1, sum(objective.labels(micro) for micro in batch))
        state.graphs.launch_ahead(batch[0], labels, state.scaler.get_scale())


def mask_seed(config: TrainConfig, number: int, micro_batch: int) -> int:
    """Dropout masks, like batches, are a function of (seed, step, micro-batch)."""
    return seed_of(config.run.seed, number, micro_batch)


def metrics_of(losses: Sequence[Loss], mesh: Mesh, count: int) -> dict[str, float]:
    """Every metric over all `count` micro-batches of the step."""
    names = dict.fromkeys(name for loss in losses for name in loss.metrics)
    joined = {name: _joined([loss.metrics.get(name) for loss in losses], mesh, count) for name in names}
    return {name: value for name, value in joined.items() if value is not None}


def _joined(metrics: Sequence[Metric | None], mesh: Mesh, count: int) -> float | None:
    """A metric of all micro-batches, given those of this process; one that has none adds nothing.

    None is the mean of nothing, and its least and most.
    """

    def numbers(one: Sequence[torch.Tensor | float]) -> tuple[float, ...]:
        return mesh.joined([float(value) for value in one], count)

    found = [metric for metric in metrics if metric is not None]
    match found[0]:
        case Mean():
            parts = [metric if isinstance(metric, Mean) else Mean(*torch.zeros(2)) for metric in metrics]
            terms = sum(numbers([part.terms for part in parts]))
            return sum(numbers([part.total for part in parts])) / terms if terms else None
        case Least():
            least = min(numbers([metric.value if isinstance(metric, Least) else math.inf for metric in metrics]))
            return None if least == math.inf else least
        case Most():
            most = max(numbers([metric.value if isinstance(metric, Most) else -math.inf for metric in metrics]))
            return None if most == -math.inf else most
    return sum(numbers([metric if isinstance(metric, torch.Tensor) else 0.0 for metric in metrics]))
