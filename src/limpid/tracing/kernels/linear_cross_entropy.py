"""From the last hidden state to the loss, or to each token's log-probability, tensor by tensor.

The engine's: model/kernels/linear_cross_entropy.py, model/kernels/token_log_probabilities.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from limpid.maths.loss import NO_LABEL, LogSoftmax
from limpid.maths.operation import Array
from limpid.tracing.ball import Ball, exactly, nearest, stored
from limpid.tracing.kernels.kernel import Formats


class Saved(NamedTuple):
    hidden: Array  # (row, d_model), of the rows whose logits are formed
    matrix: Array  # (vocab, d_model)
    logits: Ball  # (row, vocab)
    log_p: Ball  # (row, vocab)
    targets: Array  # (row,)


@dataclass(frozen=True)
class SoftmaxOfLinear:
    """Logits are a tensor in the compute format, and so is what they become, the gradient; p is float32.

    rows         so many rows of logits are formed at a time, and add their part of the matrix' gradient
    temperature  what logits are divided by
    """

    formats: Formats
    rows: int
    temperature: float = 1.0

    def forward(self, hidden: Array, matrix: Array, targets: Array) -> Saved:
        x, weight = (nearest(array, self.formats.compute) for array in (hidden, matrix))
        summed, compute = self.formats.summed, self.formats.compute
        logits = stored(self.formats.product(exactly(x, summed), exactly(weight.T, summed)), compute)
        y, _ = LogSoftmax().forward(logits.value / self.temperature)
        reach = logits.reach / self.temperature
        moved = np.log1p((np.exp(y) * np.expm1(reach)).sum(-1, keepdims=True))
        rounding = LogSoftmax().rounding(logits.value / self.temperature)
        if self.temperature != 1:  # one more rounding of every z - max
            drop = y.max(-1, keepdims=True) - y
            rounding = rounding + drop + (np.exp(y) * drop).sum(-1, keepdims=True)
        return Saved(x, weight, logits, Ball(y, reach + moved + self.formats.unit * rounding), targets)

    def backward(self, weight: Array, saved: Saved) -> tuple[Ball, Ball]:
        """Of Σ -weight · log p(target), with a weight for each row: the gradients of hidden state and matrix."""
        bar = stored(self._logits_bar(weight[:, None] / self.temperature, saved), self.formats.compute)
        hidden_bar = self.formats.product(bar, exactly(saved.matrix, self.formats.summed))
        return hidden_bar, self._matrix_bar(bar, saved.hidden)

    def _logits_bar(self, weight: Array, saved: Saved) -> Ball:
        """weight · (p - 1[target]): p with its error, three more roundings, and that of the subtraction."""
        unit, size = self.formats.unit, np.abs(weight)
        labelled = np.flatnonzero(saved.targets != NO_LABEL)
        p, target = np.exp(saved.log_p.value), saved.targets[labelled]
        reach = size * p * (np.expm1(saved.log_p.reach) + (4 + (self.temperature != 1)) * unit)
        bar = weight * p
        bar[labelled, target] -= weight[labelled, 0]
        reach[labelled, target] += 2 * unit * size[labelled, 0]
        return Ball(bar, reach)

    def _matrix_bar(self, logits_bar: Ball, hidden: Array) -> Ball:
        """One product per group of rows, each rounded to the compute format, added up in the matrix' own."""
        shape = logits_bar.value.shape[1], hidden.shape[1]
        value, reach = np.zeros(shape), np.zeros(shape)
        for start in range(0, len(hidden), self.rows):
            part = slice(start, start + self.rows)
            turned = Ball(logits_bar.value[part].T, logits_bar.reach[part].T)
            own = self.formats.product(turned, exactly(hidden[part], self.formats.summed))
            own = stored(own, self.formats.compute)
            reach += own.reach + (start > 0) * self.formats.unit * np.abs(own.value)
            value += own.value
        return Ball(value, reach)


@dataclass(frozen=True)
class LinearCrossEntropy:
    """The loss, float32: a micro-batch has its share of it.

    labels  of the whole step
    """

    formats: Formats
    labels: int
    rows: int
    arithmetic = "logits and their gradient are rounded to the compute format; p and the loss are float32, k u Σ|terms|"

    @property
    def softmax(self) -> SoftmaxOfLinear:
        return SoftmaxOfLinear(self.formats, self.rows)

    def forward(self, inputs: Sequence[Array]) -> tuple[Ball, tuple[Saved, tuple[int, ...]]]:
        hidden, matrix, targets = inputs
        saved = self.softmax.forward(hidden.reshape(-1, hidden.shape[-1]), matrix, targets.ravel())
        return self._loss(saved), (saved, hidden.shape)

    def exact(self, ball: Ball, saved: Any) -> None:
        """None: logits were rounded."""

    def _loss(self, saved: Saved) -> Ball:
        labelled = np.flatnonzero(saved.targets != NO_LABEL)
        target = saved.targets[labelled]
        loss, reach = -saved.log_p.value[labelled, target], saved.log_p.reach[labelled, target]
        size = np.abs(loss).sum() + np.abs(saved.logits.value[labelled, target]).sum()
        total = reach.sum() + self.formats.unit * (len(labelled) + 3) * size
        return Ball(np.asarray(loss.sum() / self.labels), np.asarray(total / self.labels))

    def backward(self, y_bar: Array, saved: tuple[Saved, tuple[int, ...]]) -> list[Ball | None]:
        whole, shape = saved
        weight = np.where(whole.targets == NO_LABEL, 0.0, float(y_bar) / self.labels)
        hidden_bar, matrix_bar = self.softmax.backward(weight, whole)
        return [Ball(hidden_bar.value.reshape(shape), hidden_bar.reach.reshape(shape)), matrix_bar, None]


@dataclass(frozen=True)
class TokenLogProbabilities:
    """The log-probability of each target, float32; rows without a target have no logits, and 0."""

    formats: Formats
    softmax: SoftmaxOfLinear
    arithmetic = "logits and their gradient are rounded to the compute format; p and ln p are float32, k u Σ|terms|"

    def forward(self, inputs: Sequence[Array]) -> tuple[Ball, tuple[Saved, Array, tuple[int, ...]]]:
        hidden, matrix, targets = inputs
        labelled = np.flatnonzero(targets.ravel() != NO_LABEL)
        target = targets.ravel()[labelled]
        saved = self.softmax.forward(hidden.reshape(-1, hidden.shape[-1])[labelled], matrix, target)
        chosen = np.arange(len(labelled)), target
        log_p = [self._placed(part[chosen], labelled, targets.shape) for part in (saved.log_p.value, saved.log_p.reach)]
        return Ball(*log_p), (saved, labelled, hidden.shape)

    def backward(self, y_bar: Array, saved: tuple[Saved, Array, tuple[int, ...]]) -> list[Ball | None]:
        whole, labelled, shape = saved
        hidden_bar, matrix_bar = self.softmax.backward(-y_bar.ravel()[labelled], whole)
        parts = [self._placed(part, labelled, shape) for part in (hidden_bar.value, hidden_bar.reach)]
        return [Ball(*parts), matrix_bar, None]

    def exact(self, ball: Ball, saved: Any) -> None:
        """None: logits were rounded."""

    @staticmethod
    def _placed(values: Array, labelled: Array, shape: tuple[int, ...]) -> Array:
        """Values of the rows with a target among those without."""
        placed = np.zeros((int(np.prod(shape[:2])), *values.shape[1:]))
        placed[labelled] = values
        return placed.reshape(shape)
