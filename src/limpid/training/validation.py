"""The loss on held-out data while a run trains: of each set, and with the average of the weights where one is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from limpid.data.batches import MicroBatch, validation_batches
from limpid.data.tuning.examples import Examples
from limpid.data.validation import ValidationSet, validation_sets
from limpid.model import Transformer
from limpid.model.observe import FAST
from limpid.objectives import NEXT_TOKEN, POLICY, Loss, Objective
from limpid.objectives.objective import in_memory
from limpid.training.average import in_place_of_weights
from limpid.training.start import Training
from limpid.training.step import metrics_of

JUDGED_TOGETHER = 4096
"""Tokens of a validation set that go through the model at once: smaller batches take longer for the same text."""


@dataclass(frozen=True)
class Judged:
    """How well held-out data is predicted."""

    loss: float
    """Nats per label: the mean over `labels` of them, each as much as the others, whatever training weights."""
    bits_per_byte: float | None
    """None where the labels are not all of a text."""
    labels: int
    unit: str = "nats per token"
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The objective's own."""

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700))

    @property
    def per_token(self) -> bool:
        """Whether the loss is that of a next token: others have no perplexity."""
        return self.unit == "nats per token"


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found: every set by its name, which is empty where it has none."""

    step: int
    sets: Mapping[str, Judged]
    averaged: Mapping[str, Judged] = field(default_factory=dict)
    """The same with the moving average of the weights, where one is kept."""

    @property
    def loss(self) -> float:
        """Of the first set, in nats per label: what decides which checkpoint is best, and when training stops early."""
        return next(iter(self.sets.values())).loss

    @property
    def bits_per_byte(self) -> float | None:
        """Of the first set."""
        return next(iter(self.sets.values())).bits_per_byte

    def entry(self) -> dict[str, float]:
        """As a line of metrics: eval_loss of the first set, eval_NAME_loss of each that has a name, …_ema_loss."""
        first = next(iter(self.sets))
        found: dict[str, float] = {"step": self.step}
        for name in dict.fromkeys(["", *self.sets]):
            for judged, average in ((self.sets, ""), (self.averaged, "ema_")):
                one = judged.get(name or first)
                if one is not None:
                    prefix = f"eval_{name}_{average}" if name else f"eval_{average}"
                    found |= {f"{prefix}{what}": value for what, value in _numbers(one).items()}
        return found

    def lines(self) -> list[str]:
        """One for each set, to read."""
        return [self._line(name, one) for name, one in self.sets.items()]

    def _line(self, name: str, one: Judged) -> str:
        of = f" of {name}" if name else ""
        said = f"loss{of} {one.loss:.4f} {one.unit}" if one.unit != MINUS_REWARD else f"reward {-one.loss:.4f}"
        parts = [f"step {self.step}", f"validation {said}"]
        parts += [f"perplexity {one.perplexity:.2f}"] if one.per_token else []
        parts += [] if one.bits_per_byte is None else [f"{one.bits_per_byte:.3f} bits per byte"]
        parts += [f"{what} {one.metrics[what]:.3f}" for what in SHOWN if what in one.metrics]
        parts += [f"{self.averaged[name].loss:.4f} with averaged weights"] if name in self.averaged else []
        return " | ".join(parts)


MINUS_REWARD = "minus the mean reward"
"""Unit of the loss of a policy, by which the best checkpoint is that of the largest reward."""
SHOWN = ("rewards/accuracies", "rewards/margins", "accuracy", "completions/mean_length")
"""Metrics of an objective that say most, beside the loss."""


def _numbers(one: Judged) -> dict[str, float]:
    bits = {} if one.bits_per_byte is None else {"bits_per_byte": one.bits_per_byte}
    perplexity = {"perplexity": one.perplexity} if one.per_token else {}
    return {"loss": one.loss, **bits, **perplexity, **one.metrics}


def evaluate(training: Training) -> Evaluation:
    """Mean loss over the fixed validation batches of every set."""
    state = training.state
    own = judged(training)
    if not state.average:
        return Evaluation(state.step, own)
    with in_place_of_weights(state.average, state.model):
        return Evaluation(state.step, own, judged(training))


def judged(training: Training) -> dict[str, Judged]:
    """Every set with the weights as they are."""
    data, config = training.tokens, training.config
    if isinstance(data, Examples):
        found = _of_examples(training)
        return {} if found is None else {"": found}
    return {one.name: _of_text(training, one) for one in validation_sets(data, config.data)}


def _of_text(training: Training, one: ValidationSet) -> Judged:
    length, rows = training.config.model.context_length, training.config.run.batch_size
    together = max(rows, JUDGED_TOGETHER // length)
    batches = list(validation_batches(one.tokens, length, together, rows * training.config.run.eval_batches))
    loss, labels, _ = _mean(training, batches, NEXT_TOKEN)
    return Judged(loss, one.in_bits_per_byte(loss), labels)


def _of_examples(training: Training) -> Judged | None:
    """The objective of the run, on held-out records."""
    assert training.held_out is not None
    batches, objective = training.held_out(training.state), training.objective
    if not batches:
        return None
    if isinstance(training.tokens, Examples) and training.tokens.kind == "prompts":
        return _of_answers(batches)
    loss, labels, metrics = _mean(training, batches, objective)
    every = objective.quantities(training.config.model)
    unit = "nats per token" if objective == NEXT_TOKEN else next(one.unit for one in every if one.name == "loss")
    return Judged(loss, None, labels, unit, metrics)


def _of_answers(batches: Sequence[MicroBatch]) -> Judged | None:
    """The model's own answers to held-out prompts: what is lowest at the best model is minus their mean reward, or
    how far they are from the teacher.
    """
    weights = [len(micro["rewards"]) for micro in batches]
    names = dict.fromkeys(name for micro in batches for name in micro.measured)
    metrics = {}
    for name in names:
        held = [(weight, micro.measured[name]) for weight, micro in zip(weights, batches, strict=True)
                if name in micro.measured]  # fmt: skip
        metrics[name] = sum(weight * value for weight, value in held) / sum(weight for weight, _ in held)
    if "reward" in metrics:
        return Judged(-metrics["reward"], None, sum(weights), MINUS_REWARD, metrics)
    if "kl_before" not in metrics:
        return None
    return Judged(metrics["kl_before"], None, sum(weights), "nats per token from the teacher", metrics)


def _mean(
    training: Training, batches: Sequence[MicroBatch], objective: Objective
) -> tuple[float, int, dict[str, float]]:
    """The loss over all labels, how many they are, and the objective's metrics."""
    model, mesh, pipeline = training.state.model, training.state.mesh, training.state.pipeline
    labels = max(1, sum(objective.labels(micro) for micro in batches))
    losses = []
    model.eval()
    if pipeline is not None:

        def ends(model: Transformer, micro: MicroBatch) -> Loss:
            return in_memory(objective.loss({POLICY: model}, micro, labels, FAST))

        dealt = list(mesh.share_evenly(batches))
        with torch.no_grad():
            found = pipeline.forward([micro for micro, _ in dealt], ends)
        losses = [loss for loss, (_, counts) in zip(found, dealt, strict=True) if counts]
        total = sum(mesh.joined([float(loss.value) for loss in losses], len(batches)))
        return total, labels, metrics_of(losses, mesh, len(batches))
    with torch.no_grad(), mesh.unsharded_at_most(model):
        for micro, counts in mesh.share_evenly(batches):
            loss = objective.loss(training.state.models, micro, labels, FAST)
            losses += [loss] if counts else []
    total = sum(mesh.joined([float(loss.value) for loss in losses], len(batches)))
    return total, labels, metrics_of(losses, mesh, len(batches))
