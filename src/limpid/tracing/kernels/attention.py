"""Attention of a step of training, tensor by tensor: model/kernels/attention.py and native_attention.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from limpid.maths.attention import CausalSoftmax, Scores, by_key_head, by_position
from limpid.maths.operation import Array
from limpid.tracing.ball import Ball, exactly, stored
from limpid.tracing.kernels.kernel import Formats


class Saved(NamedTuple):
    query: Array  # (batch, kv_head, row, d_head)
    key: Array  # (batch, kv_head, key, d_head)
    value: Array  # (batch, kv_head, key, d_head)
    weights: Ball  # (batch, kv_head, row, key)


@dataclass(frozen=True)
class ShortAttention:
    """Scores, weights and, backward, their gradients are tensors in the compute format, whose roundings are repeated.

    What stays open is how float32 sums were rounded: where that decides a tie, a tensor may hold either neighbour.
    """

    scores: Scores
    softmax: CausalSoftmax
    formats: Formats
    arithmetic = "scores, weights and both gradients are rounded to the compute format; sums in float32, k u Σ|terms|"

    def forward(self, inputs: Sequence[Array]) -> tuple[Ball, Saved]:
        query, key, value = inputs
        kv_heads, positions = key.shape[2], query.shape[1]
        q, k, v = (by_key_head(x, kv_heads) for x in (query, key, value))
        visible = np.tile(self.softmax.visible(positions, k.shape[2]), (q.shape[2] // positions, 1))
        weights = self._softmax(self._scores(q, k), visible)
        mixed = self.formats.product(stored(weights, self.formats.compute), exactly(v, self.formats.summed))
        return self._by_position(mixed, positions), Saved(q, k, v, self._kept(weights))

    def _scores(self, query: Array, key: Array) -> Ball:
        """Rounded to the compute format, as every array of this kernel is."""
        return stored(self._scaled(self._products(query, key)), self.formats.compute)

    def _kept(self, array: Ball) -> Ball:
        """As the backward pass reads it."""
        return stored(array, self.formats.compute)

    def _products(self, query: Array, key: Array) -> Ball:
        keys, summed = np.ascontiguousarray(key.swapaxes(2, 3)), self.formats.summed
        return self.formats.product(exactly(query, summed), exactly(keys, summed))

    def _softmax(self, scores: Ball, visible: Array) -> Ball:
        """In float32."""
        unit = self.formats.unit
        shifted = np.where(visible, scores.value, -np.inf)
        shifted -= shifted.max(-1, keepdims=True)
        weights = np.exp(shifted)
        weights /= weights.sum(-1, keepdims=True)
        reach = np.where(visible, scores.reach, 0.0)
        of_row = (weights * -np.expm1(-reach)).sum(-1, keepdims=True)  # how much smaller the sum of exponentials may be
        relative = np.expm1(reach - np.log1p(-of_row))
        terms = np.where(visible, -shifted, 0.0) + 3  # in u, as CausalSoftmax has it
        of_sums = unit * (terms + (weights * terms).sum(-1, keepdims=True) + weights.shape[-1] / 4)
        return Ball(weights, weights * (relative + of_sums + relative * of_sums))

    def backward(self, y_bar: Array, saved: Saved) -> list[Ball]:
        q, k, v, weights = saved
        summed, compute, positions = self.formats.summed, self.formats.compute, y_bar.shape[1]
        rows_bar = exactly(by_key_head(y_bar, k.shape[1]), summed)
        value_bar = self.formats.product(stored(_transposed(weights), compute), rows_bar)
        values = exactly(np.ascontiguousarray(v.swapaxes(2, 3)), summed)
        weights_bar = self._kept(self.formats.product(rows_bar, values))
        scores_bar = stored(self._scores_bar(weights, weights_bar), compute)
        query_bar = self._scaled(self._kept(self.formats.product(scores_bar, exactly(k, summed))))
        key_bar = self._scaled(self._kept(self.formats.product(_transposed(scores_bar), exactly(q, summed))))
        return [
            self._by_position(query_bar, positions), self._by_position(key_bar, k.shape[2]),
            self._by_position(value_bar, k.shape[2]),
        ]  # fmt: skip

    def _scores_bar(self, weights: Ball, bar: Ball) -> Ball:
        """w (w̄ - Σ w̄ w), with a sum over all keys and three more roundings in float32."""
        w, r, size = weights.value, weights.reach, np.abs(bar.value)
        along = (bar.value * w).sum(-1, keepdims=True)
        unit = self.formats.unit
        of_along = (size * r + bar.reach * (w + r) + (w.shape[-1] + 1) * unit * size * w).sum(-1, keepdims=True)
        reach = r * np.abs(bar.value - along) + (w + r) * (bar.reach + of_along)
        return Ball(w * (bar.value - along), reach + 3 * unit * w * (size + np.abs(along)))

    def _scaled(self, bar: Ball) -> Ball:
        scale = self.scores.scale
        return Ball(scale * bar.value, scale * (bar.reach + 2 * self.formats.unit * np.abs(bar.value)))

    @staticmethod
    def _by_position(ball: Ball, positions: int) -> Ball:
        return Ball(by_position(ball.value, positions), by_position(ball.reach, positions))


@dataclass(frozen=True)
class NativeAttention(ShortAttention):
    """Weights and the gradients of scores are rounded to the compute format once, for the products that read them.

    Scores and the gradients of weights stay in float32, and so do the weights that gradients of scores are formed from.
    """

    arithmetic = (
        "weights and gradients of scores are rounded to the compute format for products; else float32, k u Σ|terms|"
    )

    def _scores(self, query: Array, key: Array) -> Ball:
        """In float32; the exponential reads them as 2^(s c - max c), of which both products and c are rounded."""
        scores = self._scaled(self._products(query, key))
        largest = np.abs(scores.value).max(-1, keepdims=True)
        return Ball(scores.value, scores.reach + self.formats.unit * (2 * np.abs(scores.value) + largest))

    def _kept(self, array: Ball) -> Ball:
        return array


def _transposed(ball: Ball) -> Ball:
    return Ball(ball.value.swapaxes(2, 3), ball.reach.swapaxes(2, 3))
