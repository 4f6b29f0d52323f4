"""The loss on held-out text while a run trains: of each set, and with the average of the weights where one is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from limpid.data.batches import validation_batches
from limpid.data.validation import ValidationSet, validation_sets
from limpid.model.observe import FAST
from limpid.objectives import NEXT_TOKEN
from limpid.training.average import in_place_of_weights
from limpid.training.start import Training

JUDGED_TOGETHER = 4096
"""Tokens of a validation set that go through the model at once: smaller batches take longer for the same text."""


@dataclass(frozen=True)
class Judged:
    """How well held-out text is predicted."""

    loss: float
    """Nats per token: the mean over `labels` tokens, each as much as the others, whatever training weights."""
    bits_per_byte: float
    labels: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700))


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found: every set by its name, which is empty where it has none."""

    step: int
    sets: Mapping[str, Judged]
    averaged: Mapping[str, Judged] = field(default_factory=dict)
    """The same with the moving average of the weights, where one is kept."""

    @property
    def loss(self) -> float:
        """Of the first set, in nats per token: what decides which checkpoint is best, and when training stops early."""
        return next(iter(self.sets.values())).loss

    @property
    def bits_per_byte(self) -> float:
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
                    found |= {f"{prefix}loss": one.loss, f"{prefix}bits_per_byte": one.bits_per_byte,
                              f"{prefix}perplexity": one.perplexity}  # fmt: skip
        return found

    def lines(self) -> list[str]:
        """One for each set, to read."""
        return [self._line(name, one) for name, one in self.sets.items()]

    def _line(self, name: str, one: Judged) -> str:
        of = f" of {name}" if name else ""
        average = f" | {self.averaged[name].loss:.4f} with averaged weights" if name in self.averaged else ""
        return (
            f"step {self.step} | validation loss{of} {one.loss:.4f} nats per token | perplexity {one.perplexity:.2f}"
            f" | {one.bits_per_byte:.3f} bits per byte{average}"
        )


def evaluate(training: Training) -> Evaluation:
    """Mean loss over the fixed validation batches of every set."""
    sets, state = validation_sets(training.tokens, training.config.data), training.state
    own = {one.name: _judged(training, one) for one in sets}
    if not state.average:
        return Evaluation(state.step, own)
    with in_place_of_weights(state.average, state.model):
        return Evaluation(state.step, own, {one.name: _judged(training, one) for one in sets})


def _judged(training: Training, one: ValidationSet) -> Judged:
    config, model, mesh = training.config, training.state.model, training.state.mesh
    length, rows = config.model.context_length, config.run.batch_size
    together = max(rows, JUDGED_TOGETHER // length)
    batches = list(validation_batches(one.tokens, length, together, rows * config.run.eval_batches))
    total, labels = 0.0, sum(NEXT_TOKEN.labels(micro) for micro in batches)
    model.eval()
    with torch.no_grad(), mesh.unsharded_at_most(model):
        for micro, counts in mesh.share_evenly(batches):
            value = float(NEXT_TOKEN.loss(training.state.models, micro, 1, FAST).value)
            total += value if counts else 0.0
    loss = float(mesh.all_sum(torch.tensor(total, dtype=torch.float64))) / max(1, labels)
    return Judged(loss, one.in_bits_per_byte(loss), labels)
