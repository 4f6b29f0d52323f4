"""Attention of a step of training, tensor by tensor: model/kernels/attention.py and native_attention.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from limpid.maths.attention import CausalSoftmax, Scores, by_key_head, by_position
from limpid.maths.operation import Array
from limpid.maths.rounding import dots
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
        weights = self._softmax(self._scores(q, k), positions)
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

    def _softmax(self, scores: Ball, positions: int) -> Ball:
        """In float32."""
        shape = scores.value.shape
        by_head = (*shape[:-2], -1, positions, shape[-1])
        weights, saved = self.softmax.forward(scores.value.reshape(by_head))
        reach = np.array(scores.reach.reshape(by_head))
        np.copyto(reach, 0.0, where=~self.softmax.visible(positions, shape[-1]))
        lost = np.expm1(-reach)
        of_row = dots(weights, lost)  # how much smaller the sum of exponentials may be, less than 0
        reach -= np.log1p(of_row)
        relative = np.expm1(reach, out=reach)
        of_sums = self.softmax.relative(saved)
        of_sums *= self.formats.unit
        relative += of_sums + relative * of_sums
        relative *= weights
        return Ball(weights.reshape(shape), relative.reshape(shape))

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

    def exact(self, ball: Ball, saved: Saved) -> Array | None:
        """None: scores were rounded before the weights were formed."""
        return None

    def _scores_bar(self, weights: Ball, bar: Ball) -> Ball:
        """w (w̄ - Σ w̄ w), with a sum over all keys and three more roundings in float32."""
        w, r, size, unit = weights.value, weights.reach, np.abs(bar.value), self.formats.unit
        along, most = dots(bar.value, w), w + r
        of_along = dots(size, r) + dots(bar.reach, most) + (w.shape[-1] + 1) * unit * dots(size, w)
        value, reach = bar.value - along, bar.reach + of_along
        reach *= most
        reach += r * np.abs(value)
        size += np.abs(along)
        size *= 3 * unit
        reach += np.multiply(size, w, out=size)
        value *= w
        return Ball(value, reach)

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

    def exact(self, ball: Ball, saved: Saved) -> Array:
        return by_position(saved.weights.value @ saved.value, ball.value.shape[1])


def _transposed(ball: Ball) -> Ball:
    return Ball(ball.value.swapaxes(2, 3), ball.reach.swapaxes(2, 3))
