"""Linear cross-entropy: model/kernels/linear_cross_entropy.py, tensor by tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from limpid.maths.loss import NO_LABEL, LogSoftmax
from limpid.maths.operation import Array
from limpid.tracing.ball import Ball, exactly, nearest, product, stored
from limpid.tracing.kernels.kernel import Formats


class Saved(NamedTuple):
    hidden: Array  # (row, d_model)
    matrix: Array  # (vocab, d_model)
    logits: Ball  # (row, vocab)
    log_p: Ball  # (row, vocab)
    targets: Array  # (row,)
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LinearCrossEntropy:
    """Logits are a tensor in the compute format, and so is what they become, the gradient; the loss is float32.

    labels   of the whole step: a micro-batch has its share of the loss
    rows     so many rows of logits are formed at a time, and add their part of the matrix' gradient
    """

    formats: Formats
    labels: int
    rows: int
    arithmetic = "logits and their gradient are rounded to the compute format; p and the loss are float32, k u Σ|terms|"

    def forward(self, inputs: Sequence[Array]) -> tuple[Ball, Saved]:
        hidden, matrix, targets = inputs
        x, weight = (nearest(array, self.formats.compute) for array in (hidden.reshape(-1, hidden.shape[-1]), matrix))
        summed, compute = self.formats.summed, self.formats.compute
        logits = stored(product(exactly(x, summed), exactly(weight.T, summed), summed), compute)
        y, _ = LogSoftmax().forward(logits.value)
        moved = np.log1p((np.exp(y) * np.expm1(logits.reach)).sum(-1, keepdims=True))
        error = self.formats.unit * LogSoftmax().rounding(logits.value)
        log_p = Ball(y, logits.reach + moved + error)
        saved = Saved(x, weight, logits, log_p, targets.ravel(), hidden.shape)
        return self._loss(saved), saved

    def _loss(self, saved: Saved) -> Ball:
        labelled = np.flatnonzero(saved.targets != NO_LABEL)
        target = saved.targets[labelled]
        loss, reach = -saved.log_p.value[labelled, target], saved.log_p.reach[labelled, target]
        size = np.abs(loss).sum() + np.abs(saved.logits.value[labelled, target]).sum()
        total = reach.sum() + self.formats.unit * (len(labelled) + 3) * size
        return Ball(np.asarray(loss.sum() / self.labels), np.asarray(total / self.labels))

    def backward(self, y_bar: Array, saved: Saved) -> list[Ball | None]:
        logits_bar = stored(self._logits_bar(float(y_bar), saved), self.formats.compute)
        hidden_bar = product(logits_bar, exactly(saved.matrix, self.formats.summed), self.formats.summed)
        shaped = Ball(hidden_bar.value.reshape(saved.shape), hidden_bar.reach.reshape(saved.shape))
        return [shaped, self._matrix_bar(logits_bar, saved.hidden), None]

    def _logits_bar(self, scale: float, saved: Saved) -> Ball:
        """scale / labels · (p - 1[target]): p with its error, three more roundings, and that of the subtraction."""
        unit, labelled = self.formats.unit, np.flatnonzero(saved.targets != NO_LABEL)
        weight = np.zeros((len(saved.targets), 1))
        weight[labelled] = scale / self.labels
        p, target = np.exp(saved.log_p.value), saved.targets[labelled]
        reach = weight * p * (np.expm1(saved.log_p.reach) + 4 * unit)
        bar = weight * p
        bar[labelled, target] -= weight[labelled, 0]
        reach[labelled, target] += 2 * unit * weight[labelled, 0]
        return Ball(bar, reach)

    def _matrix_bar(self, logits_bar: Ball, hidden: Array) -> Ball:
        """One product per group of rows, each rounded to the compute format, added up in the matrix' own."""
        value, reach = np.zeros(()), np.zeros(())
        for start in range(0, len(hidden), self.rows):
            part = slice(start, start + self.rows)
            turned = Ball(logits_bar.value[part].T, logits_bar.reach[part].T)
            own = product(turned, exactly(hidden[part], self.formats.summed), self.formats.summed)
            own = stored(own, self.formats.compute)
            value, reach = value + own.value, reach + own.reach + (start > 0) * self.formats.unit * np.abs(own.value)
        return Ball(value, reach)
