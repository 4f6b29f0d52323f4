"""Sums over rows that an index names: embeddings and their gradients, gather and scatter."""

from __future__ import annotations

from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.exact import Exact, arithmetic, growth


def _added_at(shape: tuple[int, ...], index: Any, terms: Array) -> Exact:
    """Terms added up where they go."""
    value, size, count = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    np.add.at(value, index, terms)
    np.add.at(size, index, np.abs(terms))
    np.add.at(count, index, 1.0)
    most = growth(int(count.max(initial=1.0)))
    return Exact(value, most * size, np.minimum(count, most) * size)


@arithmetic("embedding_dense_backward")
def embedding_backward(
    grad_output: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Exact | None:
    """Each token's rows added up; none of the padding."""
    if scale_grad_by_freq:
        return None
    tokens = np.asarray(indices).astype(np.int64).ravel()
    rows = grad_output.reshape(len(tokens), -1)
    kept = tokens != padding_idx if padding_idx >= 0 else np.ones(len(tokens), bool)
    return _added_at((num_weights, rows.shape[1]), tokens[kept], rows[kept])


@arithmetic("index_add")
def index_add(self: Array, dim: int, index: Array, source: Array, alpha: float = 1) -> Exact:
    """Rows of one array added to those of another."""
    where = (slice(None),) * (dim % max(self.ndim, 1)) + (np.asarray(index).astype(np.int64),)
    made = _added_at(self.shape, where, alpha * source)
    rounding = np.asarray(made.rounding) + growth(len(np.atleast_1d(index))) * np.abs(self)
    return Exact(self + made.value, rounding, np.asarray(made.storage) * 1.0 + np.abs(self))


@arithmetic("scatter_add")
def scatter_add(self: Array, dim: int, index: Array, src: Array) -> Exact:
    """Entries added to where an index says."""
    index = np.asarray(index).astype(np.int64)
    where: list[Any] = list(np.indices(index.shape))
    where[dim % max(self.ndim, 1)] = index
    part = src[tuple(slice(0, size) for size in index.shape)]
    made = _added_at(self.shape, tuple(where), part)
    return Exact(self + made.value, np.asarray(made.rounding) + growth(index.size) * np.abs(self),
                 np.asarray(made.storage) + np.abs(self))  # fmt: skip


@arithmetic("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(self: Array, indices: list[Any], values: Array, accumulate: bool = False, unsafe: bool = False) -> Exact:
    """Entries set, or added up."""
    where = tuple(slice(None) if one is None else _as_index(one) for one in indices)
    if not accumulate:
        value = self.copy()
        value[where] = values
        return Exact(value)
    terms = np.broadcast_to(values, self[where].shape)
    made = _added_at(self.shape, where, terms)
    return Exact(self + made.value, np.asarray(made.rounding) + growth(8) * np.abs(self),
                 np.asarray(made.storage) + np.abs(self))  # fmt: skip


def _as_index(one: Array) -> Array:
    one = np.asarray(one)
    return one if one.dtype == bool else one.astype(np.int64)
