"""What an index, a mask or a comparison chooses, and constants: equal to the bit, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from limpid.operations.exact.exact import movement
from limpid.operations.exact.movement import Raw


@movement("embedding")
def embedding(
    weight: Raw, indices: Raw, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Raw:
    """The rows that tokens name."""
    return weight[indices]


@movement("index_select")
def index_select(self: Raw, dim: int, index: Raw) -> Raw:
    """Entries of an axis that an index names."""
    return self.take(index.reshape(-1), dim) if self.ndim else self


@movement("index", "_unsafe_index")
def index(self: Raw, indices: list[Any]) -> Raw:
    """Entries that arrays of indices name."""
    return self[tuple(slice(None) if one is None else one for one in indices)]


@movement("gather")
def gather(self: Raw, dim: int, index: Raw, sparse_grad: bool = False) -> Raw:
    """Along an axis, what an index names at every place."""
    if self.ndim == 0:
        return self.reshape(index.shape)
    others = tuple(slice(0, size) for axis, size in enumerate(index.shape) if axis != dim % self.ndim)
    whole = list(others)
    whole.insert(dim % self.ndim, slice(None))
    return np.take_along_axis(self[tuple(whole)], index, dim)


@movement("scatter")
def scatter(self: Raw, dim: int, index: Raw, src: Any = None, value: Any = None, reduce: str | None = None) -> Any:
    """Entries set where an index says."""
    if reduce is not None:
        return None
    made = self.copy()
    places: list[Any] = list(np.indices(index.shape))
    places[dim % max(self.ndim, 1)] = index
    given = value if src is None else src[tuple(slice(0, size) for size in index.shape)]
    made[tuple(places)] = given
    return made


@movement("where")
def where(condition: Raw, self: Any, other: Any) -> Any:
    """One of two, entry by entry."""
    if not isinstance(self, np.ndarray) or not isinstance(other, np.ndarray):
        return None
    if self.dtype != other.dtype:  # the wider of both is the result's
        wide = self.dtype if other.ndim == 0 else other.dtype
        self, other = self.astype(wide), other.astype(wide)
    return np.where(condition.astype(bool), self, other)


@movement("masked_fill")
def masked_fill(self: Raw, mask: Raw, value: Any) -> Raw:
    """A constant where a mask says."""
    return np.where(mask, np.asarray(value).astype(self.dtype), self)


@movement("masked_select")
def masked_select(self: Raw, mask: Raw) -> Raw:
    """Entries where a mask says."""
    wide, chosen = np.broadcast_arrays(self, mask)
    return wide[chosen]


@movement("nonzero")
def nonzero(self: Raw) -> Raw:
    """Indices of what is not zero."""
    return np.argwhere(self)


@movement("upsample_nearest2d")
def upsample(self: Raw, output_size: list[int], scales_h: float | None = None, scales_w: float | None = None) -> Raw:
    """The nearest entry, rounded down."""
    for axis, size, scale in ((-2, output_size[0], scales_h), (-1, output_size[1], scales_w)):
        step = 1 / scale if scale else self.shape[axis] / size
        self = self.take(np.minimum(np.floor(np.arange(size) * step).astype(int), self.shape[axis] - 1), axis)
    return self


@movement("repeat_interleave")
def repeat_each(self: Raw, repeats: Any, dim: int | None = None, output_size: int | None = None) -> Raw | None:
    """Each entry so many times."""
    return np.repeat(self, repeats, dim) if isinstance(repeats, int) else None


@movement("max_pool2d_with_indices_backward")
def max_pool_backward(
    grad_output: Raw,
    self: Raw,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Raw,
) -> Raw | None:
    """Told only where no entry is the largest of two windows."""
    flat = indices.reshape(*indices.shape[:-2], -1)
    whole = np.zeros((*self.shape[:-2], self.shape[-2] * self.shape[-1]), grad_output.dtype)
    if any(len(np.unique(one)) < one.size for one in flat.reshape(-1, flat.shape[-1])):
        return None
    np.put_along_axis(whole, flat, grad_output.reshape(flat.shape), -1)
    return whole.reshape(self.shape)


_COMPARED = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "__and__": np.bitwise_and, "__or__": np.bitwise_or,
}  # fmt: skip
for _name, _function in _COMPARED.items():
    movement(_name)(lambda self, other, function=_function: function(self, other))
_OF_ONE = {
    "logical_not": np.logical_not, "bitwise_not": np.invert, "isnan": np.isnan, "isinf": np.isinf,
    "isfinite": np.isfinite,
}  # fmt: skip
for _name, _of_one in _OF_ONE.items():
    movement(_name)(lambda self, function=_of_one: function(self))
for _name, _function in {"maximum": np.maximum, "minimum": np.minimum}.items():
    movement(_name)(lambda self, other, function=_function: function(self, other))


@movement("any", "all")
def any_or_all(self: Raw, name: str, dim: Any = None, keepdim: bool = False) -> Raw:
    """Whether one is, or all are."""
    axes = None if dim is None else tuple(np.atleast_1d(dim))
    return np.asarray((np.any if name == "any" else np.all)(self, axes, keepdims=keepdim))


@movement("amax", "amin")
def extreme(self: Raw, name: str, dim: Any = (), keepdim: bool = False) -> Raw:
    """The largest or smallest of axes."""
    axes = tuple(np.atleast_1d(dim).astype(int)) or None
    return np.asarray((self.max if name == "amax" else self.min)(axes, keepdims=keepdim))


@movement("max", "min")
def largest(self: Raw, name: str, dim: int | None = None, keepdim: bool = False, other: Any = None) -> Any:
    """Of two arrays, of all entries, or of an axis; then the place is not told, as two may be as large."""
    found = np.max if name == "max" else np.min
    if other is not None:
        return (np.maximum if name == "max" else np.minimum)(self, other)
    return np.asarray(found(self)) if dim is None else [found(self, dim, keepdims=keepdim), None]


@movement("argmax", "argmin")
def place_of_largest(self: Raw, name: str, dim: int | None = None, keepdim: bool = False) -> Raw:
    """The first place of the largest entry."""
    return np.asarray((np.argmax if name == "argmax" else np.argmin)(self, dim, keepdims=keepdim))


@movement("topk")
def topk(self: Raw, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Any]:
    """The k largest, in order; their places are not told."""
    order = np.sort(self.astype(np.float64), dim)
    order = np.flip(order, dim) if largest else order
    return [order.take(np.arange(k), dim).astype(self.dtype), None] if sorted else [None, None]


@movement("sort")
def sort(self: Raw, dim: int = -1, descending: bool = False, stable: bool | None = None) -> list[Any]:
    """In order; places are not told."""
    order = np.sort(self, dim)
    return [np.flip(order, dim) if descending else order, None]


@movement("zeros", "zeros_like", "new_zeros", "zero", "_efficientzerotensor")
def zeros(like: Raw, **_: Any) -> Raw:
    """Zeros."""
    return np.zeros_like(like)


@movement("ones", "ones_like", "new_ones")
def ones(like: Raw, **_: Any) -> Raw:
    """Ones."""
    return np.ones_like(like)


@movement("full", "full_like", "new_full", "scalar_tensor", "fill")
def full(like: Raw, fill_value: Any = None, s: Any = None, value: Any = None, **_: Any) -> Raw:
    """One number everywhere."""
    number = next(one for one in (fill_value, s, value) if one is not None)
    return np.full_like(like, np.asarray(number).astype(like.dtype))


@movement("arange")
def arange(like: Raw, end: float, start: float = 0, step: float = 1, **_: Any) -> Raw | None:
    """Numbers one after the other."""
    return np.arange(start, end, step).astype(like.dtype) if like.dtype.kind == "i" else None


@movement("copy", "_to_copy", "to")
def copy(like: Raw, self: Raw, src: Raw | None = None, **_: Any) -> Raw | None:
    """In another format, rounded to nearest, ties to even."""
    given = self if src is None else src
    if like.dtype == bool:
        return np.broadcast_to(given != 0, like.shape)
    if given.dtype.kind in "fV" and like.dtype.kind in "iu":
        with np.errstate(invalid="ignore"):  # what is no number becomes whatever the processor makes of it
            return np.broadcast_to(np.trunc(given.astype(np.float64)).astype(like.dtype), like.shape)
    if given.dtype == np.float64 and like.dtype.itemsize == 2:  # PyTorch goes by way of float32
        given = given.astype(np.float32)
    return np.broadcast_to(given.astype(like.dtype), like.shape)
