"""Sums over rows that an index names: embeddings and their gradients, gather and scatter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.exact import Exact, arithmetic, growth
from limpid.operations.exact.movement import unfold, windows_as_columns


def added_at(shape: tuple[int, ...], index: Any, terms: Array) -> Exact:
    """Terms added up where they go in an array of this shape."""
    value, size, count = np.zeros(shape, terms.dtype), np.zeros(shape), np.zeros(shape)
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
    return added_at((num_weights, rows.shape[1]), tokens[kept], rows[kept])


def _added_to(self: Array, where: tuple[Any, ...], terms: Array) -> Exact:
    """Terms added to what is there."""
    made = added_at(self.shape, where, terms)
    rounding = np.asarray(made.rounding) + growth(terms.size) * np.abs(self)
    return Exact(self + made.value, rounding, np.asarray(made.storage) + np.abs(self))


def _without_axis(one: Exact) -> Exact:
    return Exact(*(np.asarray(part).reshape(()) for part in (one.value, one.rounding, one.storage)))


@arithmetic("index_add")
def index_add(self: Array, dim: int, index: Array, source: Array, alpha: float = 1) -> Exact:
    """Rows of one array added to those of another."""
    where = (slice(None),) * (dim % max(self.ndim, 1)) + (np.atleast_1d(index).astype(np.int64),)
    if not self.ndim:
        return _without_axis(_added_to(self[None], where, np.atleast_1d(alpha * source)))
    return _added_to(self, where, alpha * source)


@arithmetic("scatter_add")
def scatter_add(self: Array, dim: int, index: Array, src: Array) -> Exact:
    """Entries added to where an index says."""
    if not np.size(index):
        return Exact(self)
    if not self.ndim:
        return _without_axis(scatter_add(self[None], 0, np.atleast_1d(index), np.atleast_1d(src)))
    index = np.asarray(index).astype(np.int64)
    where: list[Any] = list(np.indices(index.shape))
    where[dim % self.ndim] = index
    return _added_to(self, tuple(where), src[tuple(slice(0, size) for size in index.shape)])


@arithmetic("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(self: Array, indices: list[Any], values: Array, accumulate: bool = False, unsafe: bool = False) -> Exact:
    """Entries set, or added up."""
    where = tuple(slice(None) if one is None else _as_index(one) for one in indices)
    if not accumulate:
        value = self.copy()
        value[where] = values
        return Exact(value)
    return _added_to(self, where, np.broadcast_to(values, self[where].shape))


def _as_index(one: Array) -> Array:
    one = np.asarray(one)
    return one if one.dtype == bool else one.astype(np.int64)


@arithmetic("col2im")
def columns_added(
    self: Array, output_size: list[int], kernel_size: list[int], dilation: list[int], padding: list[int],
    stride: list[int],
) -> Exact:  # fmt: skip
    """Columns added up where their windows lay."""
    batch, channels = self.shape[:-2], self.shape[-2] // math.prod(kernel_size)
    wide = [size + 2 * pad for size, pad in zip(output_size, padding, strict=True)]
    entries = np.arange(math.prod(wide)).reshape(1, *wide)
    places = windows_as_columns(entries, kernel_size, dilation, [0, 0], stride).ravel()
    terms = self.reshape(math.prod(batch) * channels, -1)
    rows = len(terms)
    found = added_at((rows, math.prod(wide)), (np.arange(rows)[:, None], places[None, :]), terms)
    inner: tuple[Any, ...] = (..., *(slice(pad, pad + size) for pad, size in zip(padding, output_size, strict=True)))
    return Exact(*(np.asarray(one).reshape(*batch, channels, *wide)[inner]
                   for one in (found.value, found.rounding, found.storage)))  # fmt: skip


@arithmetic("unfold_backward")
def unfold_backward(grad_in: Array, input_sizes: list[int], dim: int, size: int, step: int) -> Exact:
    """Windows of an axis added up where they lay."""
    if not input_sizes:
        return Exact(grad_in.reshape(()))
    entries = np.arange(math.prod(input_sizes)).reshape(input_sizes)
    found = added_at((entries.size,), np.asarray(unfold(entries, dim, size, step)).ravel(), grad_in.ravel())
    return Exact(*(np.asarray(one).reshape(input_sizes) for one in (found.value, found.rounding, found.storage)))


_FOUND: dict[str, Any] = {"amax": np.maximum, "amin": np.minimum, "prod": np.multiply}


@arithmetic("scatter_reduce", "index_reduce")
def scatter_reduce(
    self: Array, dim: int, index: Array, name: str, reduce: str, src: Any = None, source: Any = None,
    include_self: bool = True,
) -> Exact | None:  # fmt: skip
    """Sums, products, means or extremes of what goes to the same place, with or without what is there."""
    if not np.size(index):
        return Exact(self)
    if not self.ndim:
        given = {"src": src, "source": source}
        wide = {key: None if one is None else np.atleast_1d(one) for key, one in given.items()}
        found = scatter_reduce(self[None], 0, np.atleast_1d(index), name, reduce, **wide, include_self=include_self)
        return None if found is None else _without_axis(found)
    index, dim = np.asarray(index).astype(np.int64), dim % self.ndim
    if name == "index_reduce":
        where: tuple[Any, ...] = (*(slice(None) for _ in range(dim)), index)
        terms = source
    else:
        places: list[Any] = list(np.indices(index.shape))
        places[dim] = index
        where, terms = tuple(places), src[tuple(slice(0, size) for size in index.shape)]
    count = np.zeros(self.shape)
    np.add.at(count, where, 1.0)
    most = growth(int(count.max()) + 1)
    if reduce in ("sum", "mean"):
        start = np.where((count > 0) & (not include_self), 0.0, self)
        made = _added_to(start, where, terms)
        over = np.maximum(count + include_self, 1) if reduce == "mean" else np.ones(self.shape)
        value, size = made.value / over, np.asarray(made.rounding) / over
        return Exact(value, size + most * np.abs(value), np.asarray(made.storage) / over + np.abs(value))
    empty = {"amax": -np.inf, "amin": np.inf, "prod": 1.0}[reduce]
    value = np.where((count > 0) & (not include_self), empty, self)
    _FOUND[reduce].at(value, where, terms)
    off = (count + 1) * np.abs(np.where(np.isfinite(value), value, 0.0)) if reduce == "prod" else np.zeros(self.shape)
    return Exact(value, off, np.abs(value) + off)
