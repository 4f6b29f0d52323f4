"""Bags of embeddings: sums, means or largest entries of rows that belong together."""

from __future__ import annotations

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.exact import Exact, arithmetic, growth
from limpid.operations.exact.indexing import added_at

SUM, MEAN, MAX = 0, 1, 2
NARROW_MEAN = 3.0
"""Roundings to the format of the result in a mean: of the sum, of one over the number of rows, of their product."""


@arithmetic("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> list[Exact | None]:
    """Rows of a table, a bag after the other; none of the padding. The other results are whole numbers."""
    tokens = np.asarray(indices).astype(np.int64)
    begins = np.asarray(offsets).astype(np.int64)[: -1 if include_last_offset else None]
    value, size, longest = np.zeros((len(begins), weight.shape[1])), np.zeros((len(begins), weight.shape[1])), 1
    for bag, (begin, end) in enumerate(zip(begins, [*begins[1:], len(tokens)], strict=True)):
        places = np.arange(begin, end)[tokens[begin:end] != padding_idx]
        rows = weight[tokens[places]]
        if per_sample_weights is not None:
            rows = rows * per_sample_weights[places, None]
        if len(rows):
            value[bag] = rows.max(0) if mode == MAX else rows.sum(0) / (len(rows) if mode == MEAN else 1)
            size[bag] = 0 if mode == MAX else np.abs(rows).sum(0) / (len(rows) if mode == MEAN else 1)
            longest = max(longest, len(rows))
    times = NARROW_MEAN if mode == MEAN else 1.0
    return [Exact(value, (growth(longest) + 4) * size, times * size), None, None, None]


@arithmetic("_embedding_bag_backward", "_embedding_bag_dense_backward")
def embedding_bag_backward(
    grad: Array,
    indices: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
    offsets: Array | None = None,
    sparse: bool = False,
) -> Exact | None:
    """The gradient of each bag, to its rows, or each entry of it to where the largest was found."""
    if scale_grad_by_freq or sparse:
        return None
    shape = (num_weights, grad.shape[1])
    if mode == MAX:
        found = np.asarray(maximum_indices).astype(np.int64)
        bags = _bags(len(indices), offset2bag, offsets)[np.asarray(indices) != padding_idx]
        full = np.isin(np.arange(len(found)), bags)  # an empty one has no largest
        kept = (found >= 0) & full[:, None]
        return added_at(shape, (found[kept], np.broadcast_to(np.arange(shape[1]), found.shape)[kept]), grad[kept])
    tokens, bags = np.asarray(indices).astype(np.int64), _bags(len(indices), offset2bag, offsets)
    rows = grad[bags]
    if mode == MEAN:
        rows = rows / np.maximum(np.asarray(bag_size)[bags], 1)[:, None]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    kept = tokens != padding_idx
    made, size = added_at(shape, tokens[kept], rows[kept]), added_at(shape, tokens[kept], np.abs(rows[kept])).value
    storage = np.asarray(made.storage) + NARROW_MEAN * size
    return Exact(made.value, np.asarray(made.rounding) + 4 * size, storage)


def _bags(count: int, offset2bag: Array, offsets: Array | None) -> Array:
    """The bag of each row: PyTorch leaves it out where it needs it not."""
    if len(offset2bag) >= count or offsets is None:
        return np.asarray(offset2bag).astype(np.int64)[:count]
    return np.searchsorted(np.asarray(offsets).astype(np.int64), np.arange(count), side="right") - 1


@arithmetic("_embedding_bag_per_sample_weights_backward")
def sample_weights_backward(
    grad: Array, weight: Array, indices: Array, offsets: Array, offset2bag: Array, mode: int, padding_idx: int = -1
) -> Exact | None:
    """A product of the bag's gradient and the row, for each."""
    if mode != SUM:
        return None
    tokens, bags = np.asarray(indices).astype(np.int64), _bags(len(indices), offset2bag, offsets)
    terms = grad[bags] * weight[tokens] * (tokens != padding_idx)[:, None]
    return Exact(terms.sum(1), growth(terms.shape[1]) * np.abs(terms).sum(1))
