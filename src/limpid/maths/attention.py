"""Attention: how well each query meets each key, which keys it may see, and the mix of their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.errors import ShapeError
from limpid.maths.operation import Array, Branch, Operation, Shape, in_latex
from limpid.maths.rounding import dots, magnitudes


def by_key_head(
    x: Float[Array, "batch position head d_head"], kv_heads: int
) -> Float[Array, "batch kv_head row d_head"]:
    """The heads that share a key head, one after the other: (batch, kv_head, heads per key head · position, d_head)."""
    batch, d_head = x.shape[0], x.shape[-1]
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(batch, kv_heads, -1, d_head)


def by_position(
    x: Float[Array, "batch kv_head row d_head"], positions: int
) -> Float[Array, "batch position head d_head"]:
    """The inverse of `by_key_head`."""
    batch, _, _, d_head = x.shape
    return x.reshape(batch, -1, positions, d_head).transpose(0, 2, 1, 3)


OF_KEY_HEAD = r", \quad g = \lfloor h\, G / H \rfloor"
"""Which key head g of G serves the query head h of H."""


def _shared(line: str, heads: int, kv_heads: int) -> str:
    """A line about query heads h and key heads g, for so many of each."""
    if heads == kv_heads:  # every query head has its own
        return line.replace(OF_KEY_HEAD, "").replace(r"\sum_{h \in g} ", "").replace("jgf", "jhf")
    if kv_heads == 1:
        return line.replace(OF_KEY_HEAD, "").replace(r"h \in g", "h").replace("jgf", "jf")
    return line.replace(OF_KEY_HEAD, rf", \quad g = \lfloor h / {heads // kv_heads} \rfloor")


class SavedScores(NamedTuple):
    query: Array  # (batch, kv_head, row, d_head)
    key: Array  # (batch, kv_head, key, d_head)
    positions: int


@dataclass(frozen=True)
class Scores(Operation):
    """Compare every query with every key; several query heads may share one key head.

    Takes   query   (batch, query, head, d_head)
            key     (batch, key, kv_head, d_head)
    Gives   scores  (batch, head, query, key)  nats, up to a constant per query
    Saves   queries and keys
    Limits  orthogonal query and key score 0
    Raises  ShapeError when heads do not divide into kv_heads, or widths differ
    """

    scale: float  # 1/√d_head keeps the variance of a score at 1

    equation = r"s_{hij} = \tfrac{1}{\sqrt{d}} \sum_f q_{ihf} k_{jgf}, \quad g = \lfloor h\, G / H \rfloor"
    adjoint = (
        r"\bar q_{ihf} = \tfrac{1}{\sqrt{d}} \sum_j \bar s_{hij} k_{jgf}",
        r"\bar k_{jgf} = \tfrac{1}{\sqrt{d}} \sum_{h \in g} \sum_i \bar s_{hij} q_{ihf}",
    )
    source = "Vaswani et al. 2017, eq. 1, arXiv:1706.03762; shared keys, Ainslie et al. 2023, arXiv:2305.13245"
    branch = Branch.LINEAR_ALGEBRA
    roundings = 2

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        query, key = shapes
        d_head = query[-1]
        usual = self.scale == 1 / math.sqrt(d_head)
        scale = rf"\tfrac{{1}}{{\sqrt{{{d_head}}}}}" if usual else rf"{in_latex(self.scale)}\,"
        return _shared(line.replace(r"\tfrac{1}{\sqrt{d}}", scale), query[2], key[2])

    def forward(
        self, query: Float[Array, "batch query head d_head"], key: Float[Array, "batch key kv_head d_head"]
    ) -> tuple[Array, SavedScores]:
        if query.shape[2] % key.shape[2] or query.shape[3] != key.shape[3]:
            raise ShapeError(
                f"query has shape {query.shape}, key {key.shape}: each key head serves as many query heads"
            )
        queries, keys = by_key_head(query, key.shape[2]), by_key_head(key, key.shape[2])
        scores = self.scale * (queries @ keys.swapaxes(2, 3))
        batch, positions, heads, _ = query.shape
        return scores.reshape(batch, heads, positions, -1), SavedScores(queries, keys, positions)

    def backward(self, scores_bar: Float[Array, "batch head query key"], saved: SavedScores) -> tuple[Array, Array]:
        query, key, positions = saved
        scores_bar = self.scale * scores_bar.reshape(*query.shape[:3], -1)
        query_bar, key_bar = scores_bar @ key, scores_bar.swapaxes(2, 3) @ query
        return by_position(query_bar, positions), by_position(key_bar, key.shape[2])

    def rounding(self, query: Array, key: Array) -> Array:
        queries, keys = by_key_head(query, key.shape[2]), by_key_head(key, key.shape[2])
        size = magnitudes(queries, keys.swapaxes(2, 3))
        size *= (query.shape[-1] + 2) * abs(self.scale)
        batch, positions, heads, _ = query.shape
        return size.reshape(batch, heads, positions, -1)

    def backward_rounding(self, scores_bar: Array, saved: SavedScores) -> tuple[Array, Array]:
        query_bar, key_bar = self._magnitudes(scores_bar, saved)
        return (saved.key.shape[2] + 2) * query_bar, (saved.query.shape[2] + 2) * key_bar

    def backward_storage(
        self, bars: Sequence[Array | None], scores_bar: Array, saved: SavedScores
    ) -> tuple[Array | None, ...]:
        """The scaled gradient of the scores is stored before it is multiplied; so is each query head's part of k̄."""
        (query_bar, key_bar), (query, key) = bars, self._magnitudes(scores_bar, saved)
        assert query_bar is not None
        assert key_bar is not None
        return query + np.abs(query_bar), 2 * key + np.abs(key_bar)

    def _magnitudes(self, scores_bar: Array, saved: SavedScores) -> tuple[Array, Array]:
        query, key, positions = saved
        scores_bar = scores_bar.reshape(*query.shape[:3], -1)
        query_bar, key_bar = magnitudes(scores_bar, key), magnitudes(scores_bar.swapaxes(2, 3), query)
        scale = abs(self.scale)
        return by_position(scale * query_bar, positions), by_position(scale * key_bar, key.shape[2])

    def flops(self, query: Array, key: Array) -> int:
        return 2 * query.size * key.shape[1]


class SavedSoftmax(NamedTuple):
    weights: Array  # (..., query, key)
    drop: Array  # (..., query, key)  how far each score lies below its row's largest; 0 where hidden


@dataclass(frozen=True)
class CausalSoftmax(Operation):
    """Turn each query's scores into probabilities over the keys it may see: itself and what came before.

    Takes   scores   (..., query, key)  nats
    Gives   weights  (..., query, key)  probability; every row sums to 1, hidden keys get exactly 0
    Saves   the weights
    Limits  the first query sees itself only: weight 1, no gradient; a window of 1 does so everywhere
    Raises  ShapeError when there are fewer keys than queries
    """

    window: int | None = None  # positions seen, itself included
    causal: bool = True

    equation = r"w_{ij} = \frac{e^{s_{ij}}}{\sum_{j' \text{ visible}} e^{s_{ij'}}}, \quad i - n < j \le i"
    adjoint = (r"\bar s_{ij} = w_{ij} \bigl(\bar w_{ij} - \sum_{j'} \bar w_{ij'} w_{ij'}\bigr)",)
    source = "Vaswani et al. 2017, section 3.2.3, arXiv:1706.03762; window, Beltagy et al. 2020, arXiv:2004.05150"
    branch = Branch.PROBABILITY

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        if line != self.equation:
            return line
        weights, _, _ = line.partition(r", \quad")
        seen = r"j \le i" if self.causal else ""
        if self.window is not None:
            seen = rf"i - {self.window} < j \le i" if self.causal else rf"|i - j| < {self.window}"
        return rf"{weights}, \quad {seen}" if seen else weights

    def visible(self, queries: int, keys: int) -> Array:
        """Which keys each query may see; the last query stands at the last key."""
        if queries > keys:
            raise ShapeError(f"{queries} queries but {keys} keys: every query needs at least its own key")
        behind = np.arange(keys - queries, keys)[:, None] - np.arange(keys)  # how far a key lies behind its query
        seen = behind >= 0 if self.causal else np.ones((queries, keys), dtype=bool)
        return seen if self.window is None else seen & (np.abs(behind) < self.window)

    def forward(self, scores: Float[Array, "... query key"]) -> tuple[Array, SavedSoftmax]:
        hidden = ~self.visible(*scores.shape[-2:])
        shifted = scores.copy()
        np.copyto(shifted, -np.inf, where=hidden)
        shifted -= shifted.max(-1, keepdims=True)
        np.copyto(shifted, 0.0, where=hidden)
        weights = np.exp(shifted)
        np.copyto(weights, 0.0, where=hidden)
        weights /= weights.sum(-1, keepdims=True)
        return weights, SavedSoftmax(weights, np.negative(shifted, out=shifted))

    def backward(self, weights_bar: Float[Array, "... query key"], saved: SavedSoftmax) -> tuple[Array]:
        weights = saved.weights
        hidden = ~self.visible(*weights.shape[-2:])
        scores_bar = weights_bar.copy()
        np.copyto(scores_bar, 0.0, where=hidden)  # a hidden key passes nothing on, not even 0 · nan
        scores_bar -= dots(scores_bar, weights)  # raising all scores alike changes nothing
        scores_bar *= weights
        np.copyto(scores_bar, 0.0, where=hidden)
        return (scores_bar,)

    def rounding(self, scores: Array) -> Array:
        weights, saved = self.forward(scores)
        return weights * self.relative(saved)

    def backward_rounding(self, weights_bar: Array, saved: SavedSoftmax) -> tuple[Array]:
        weights, relative = saved.weights, self.relative(saved)
        magnitude = np.abs(weights_bar)
        terms = magnitude * weights
        size = terms.sum(-1, keepdims=True)
        along = 2 * (dots(terms, relative) + size)
        error = relative * size
        relative += 3
        error += np.multiply(relative, magnitude, out=relative)
        error += along
        error *= weights
        return (error,)

    @staticmethod
    def relative(saved: SavedSoftmax) -> Array:
        """Relative error of each weight in u: of s - max, which eˢ passes on, of eˢ itself, of the sum over keys."""
        relative = saved.drop + 3
        relative += dots(saved.weights, relative) + saved.weights.shape[-1] / 4
        return relative


class SavedMix(NamedTuple):
    weights: Array  # (batch, kv_head, row, key)
    value: Array  # (batch, kv_head, key, d_head)
    shape: tuple[int, ...]  # of the weights as they came


@dataclass(frozen=True)
class Mix(Operation):
    """Average the values that each query sees, by its weights.

    Takes   weights  (batch, head, query, key)     probability
            value    (batch, key, kv_head, d_head)
    Gives   mixed    (batch, query, head, d_head)  in the unit of the values
    Saves   weights and values
    Limits  all weight on one key copies its value
    Raises  ShapeError when heads do not divide into kv_heads, or the numbers of keys differ
    """

    equation = r"o_{ihf} = \sum_j w_{hij} v_{jgf}"
    adjoint = (
        r"\bar w_{hij} = \sum_f \bar o_{ihf} v_{jgf}",
        r"\bar v_{jgf} = \sum_{h \in g} \sum_i \bar o_{ihf} w_{hij}",
    )
    source = "Vaswani et al. 2017, eq. 1, arXiv:1706.03762"
    branch = Branch.LINEAR_ALGEBRA

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        weights, value = shapes
        return _shared(line + OF_KEY_HEAD if line == self.equation else line, weights[1], value[2])

    def forward(
        self, weights: Float[Array, "batch head query key"], value: Float[Array, "batch key kv_head d_head"]
    ) -> tuple[Array, SavedMix]:
        batch, heads, queries, keys = weights.shape
        if heads % value.shape[2] or keys != value.shape[1]:
            raise ShapeError(f"weights have shape {weights.shape}, value {value.shape}: heads or keys do not fit")
        values = by_key_head(value, value.shape[2])
        grouped = weights.reshape(batch, value.shape[2], -1, keys)
        return by_position(grouped @ values, queries), SavedMix(grouped, values, weights.shape)

    def backward(self, mixed_bar: Float[Array, "batch query head d_head"], saved: SavedMix) -> tuple[Array, Array]:
        weights, value, shape = saved
        rows_bar = by_key_head(mixed_bar, value.shape[1])
        weights_bar = (rows_bar @ value.swapaxes(2, 3)).reshape(shape)
        return weights_bar, by_position(weights.swapaxes(2, 3) @ rows_bar, value.shape[2])

    def rounding(self, weights: Array, value: Array) -> Array:
        grouped = weights.reshape(len(weights), value.shape[2], -1, weights.shape[-1])
        size = magnitudes(grouped, by_key_head(value, value.shape[2]))
        return by_position((weights.shape[-1] + 1) * size, weights.shape[2])

    def backward_rounding(self, mixed_bar: Array, saved: SavedMix) -> tuple[Array, Array]:
        weights_bar, value_bar = self._magnitudes(mixed_bar, saved)
        return (mixed_bar.shape[-1] + 1) * weights_bar, (saved.weights.shape[2] + 1) * value_bar

    def backward_storage(
        self, bars: Sequence[Array | None], mixed_bar: Array, saved: SavedMix
    ) -> tuple[Array | None, ...]:
        """Each query head's part of v̄ may be stored before they are added."""
        weights_bar, value_bar = bars
        assert weights_bar is not None
        assert value_bar is not None
        shared = saved.weights.shape[2] != saved.shape[2]
        parts = self._magnitudes(mixed_bar, saved)[1] if shared else 0.0
        return np.abs(weights_bar), np.abs(value_bar) + parts

    def _magnitudes(self, mixed_bar: Array, saved: SavedMix) -> tuple[Array, Array]:
        weights, value, shape = saved
        rows_bar = by_key_head(mixed_bar, value.shape[1])
        weights_bar = magnitudes(rows_bar, value.swapaxes(2, 3)).reshape(shape)
        return weights_bar, by_position(magnitudes(weights.swapaxes(2, 3), rows_bar), value.shape[2])

    def flops(self, weights: Array, value: Array) -> int:
        return 2 * weights.size * value.shape[-1]
