"""What an index, a mask or a comparison chooses, and constants: equal to the bit, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from limpid.operations.exact.exact import all_axes, movement
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
    if self.ndim == 0 or not index.ndim or not index.size:
        return self.reshape(-1)[index.reshape(-1)].reshape(index.shape)
    others = tuple(slice(0, size) for axis, size in enumerate(index.shape) if axis != dim % self.ndim)
    whole = list(others)
    whole.insert(dim % self.ndim, slice(None))
    return np.take_along_axis(self[tuple(whole)], index, dim)


@movement("scatter")
def scatter(self: Raw, dim: int, index: Raw, src: Any = None, value: Any = None, reduce: str | None = None) -> Any:
    """Entries set where an index says."""
    if reduce is not None:
        return None
    if not self.ndim:
        return scatter(self[None], 0, np.atleast_1d(index), src if src is None else np.atleast_1d(src), value).reshape(
            ()
        )
    made = self.copy()
    if not index.size:
        return made
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


@movement("repeat_interleave")
def repeat_each(
    repeats: Any, self: Raw | None = None, dim: int | None = None, output_size: int | None = None
) -> Raw | None:
    """Each entry so many times; or each place as often as it says there."""
    if self is None:
        return np.repeat(np.arange(len(repeats)), repeats)
    return np.repeat(self, repeats, dim) if isinstance(repeats, int) else None


@movement("index_fill")
def index_fill(self: Raw, dim: int, index: Raw, value: Any) -> Raw:
    """A constant at entries of an axis that an index names."""
    made = np.atleast_1d(self).copy()
    made[(slice(None),) * (dim % made.ndim) + (np.atleast_1d(index),)] = np.asarray(value).astype(made.dtype)
    return made.reshape(self.shape)


@movement("index_copy")
def index_copy(self: Raw, dim: int, index: Raw, source: Raw) -> Raw:
    """Rows set where an index says."""
    made = np.atleast_1d(self).copy()
    made[(slice(None),) * (dim % made.ndim) + (np.atleast_1d(index),)] = source
    return made.reshape(self.shape)


@movement("masked_scatter")
def masked_scatter(self: Raw, mask: Raw, source: Raw) -> Raw:
    """Entries set where a mask says, one after the other."""
    made, chosen = (one.copy() for one in np.broadcast_arrays(self, mask))
    made[chosen] = source.reshape(-1)[: int(chosen.sum())]
    return made


@movement("masked_scatter_backward")
def masked_scatter_backward(grad_output: Raw, mask: Raw, sizes: list[int]) -> Raw:
    """The gradients where the mask says, zeros behind them."""
    taken = grad_output[np.broadcast_to(mask, grad_output.shape)]
    made = np.zeros(int(np.prod(sizes)), grad_output.dtype)
    made[: taken.size] = taken
    return made.reshape(sizes)


@movement("take")
def take(self: Raw, index: Raw) -> Raw:
    """Entries by their place in all."""
    return self.reshape(-1)[index]


@movement("eye")
def eye(like: Raw, **_: Any) -> Raw:
    """Ones on the diagonal."""
    return np.eye(*like.shape).astype(like.dtype)


@movement("equal")
def equal(self: Raw, other: Raw) -> Raw:
    """Whether all entries are the same."""
    return np.asarray(np.array_equal(self, other))


@movement("isin")
def isin(elements: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False) -> Raw:
    """Whether an entry is among others."""
    return np.isin(elements, test_elements, invert=invert)


@movement("bucketize", "searchsorted")
def bucketize(
    self: Any, boundaries: Raw | None = None, sorted_sequence: Raw | None = None, out_int32: bool = False,
    right: bool = False,
) -> Raw | None:  # fmt: skip
    """How many boundaries lie below, or not above."""
    ends = sorted_sequence if boundaries is None else boundaries
    return None if ends is None or ends.ndim != 1 else np.searchsorted(ends, self, "right" if right else "left")


@movement("aminmax")
def both_extremes(self: Raw, dim: int | None = None, keepdim: bool = False) -> list[Raw]:
    """The smallest and the largest."""
    axes = all_axes(dim, self.ndim)
    return [np.asarray(find(axes, keepdims=keepdim)) for find in (self.min, self.max)]


def _middle(self: Raw, dim: int, among: Any) -> Raw:
    """The lower of the two in the middle of an axis; no number where one is none."""
    order = np.sort(self, dim)
    found = np.take_along_axis(order, np.expand_dims(np.asarray(among), dim), dim)
    return found.squeeze(dim)


@movement("median", "nanmedian")
def median(self: Raw, name: str, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of the two in the middle; its place is not told, as two may be as large."""
    x = self.reshape(-1) if dim is None or not self.ndim else self
    axis = 0 if dim is None or not self.ndim else dim
    if not x.size:
        return None
    lost = np.isnan(x).sum(axis)
    known = x.shape[axis] - lost
    found = _middle(x, axis, np.maximum(known - 1, 0) // 2)
    found = (
        np.where(lost > 0, np.asarray(np.nan, x.dtype), found) if name == "median" and x.dtype.kind == "f" else found
    )
    if dim is None:
        return np.asarray(found)
    return [np.expand_dims(found, axis) if keepdim and self.ndim else found, None]


@movement("kthvalue")
def kth_value(self: Raw, k: int, dim: int = -1, keepdim: bool = False) -> list[Any]:
    """The entry of an axis that has so many below it; its place is not told, as two may be as large."""
    if not self.ndim:
        return [self, None]
    found = np.sort(self, dim).take(k - 1, dim)
    return [np.expand_dims(found, dim) if keepdim else found, None]


@movement("put")
def put(self: Raw, index: Raw, source: Raw, accumulate: bool = False) -> Raw | None:
    """Entries set by their place in all."""
    if accumulate:
        return None
    made = self.copy().reshape(-1)
    made[index.reshape(-1)] = source.reshape(-1)
    return made.reshape(self.shape)


@movement("cummax", "cummin")
def extreme_so_far(self: Raw, dim: int, name: str) -> list[Raw | None]:
    """The largest, or smallest, of the first so many; the place is not told, as two may be as large."""
    found = np.maximum if name == "cummax" else np.minimum
    return [found.accumulate(self, dim) if self.ndim else self, None]


@movement("nan_to_num")
def nan_to_num(self: Raw, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Raw:
    """Numbers for what is none, and for infinities."""
    return np.nan_to_num(self, nan=nan or 0.0, posinf=posinf, neginf=neginf)


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
    "isfinite": np.isfinite, "isposinf": np.isposinf, "isneginf": np.isneginf, "signbit": np.signbit,
}  # fmt: skip
for _name, _of_one in _OF_ONE.items():
    movement(_name)(lambda self, function=_of_one: function(self))
for _name, _function in {
    "maximum": np.maximum, "minimum": np.minimum, "fmax": np.fmax, "fmin": np.fmin, "copysign": np.copysign,
    "nextafter": np.nextafter, "bitwise_left_shift": np.left_shift, "bitwise_right_shift": np.right_shift,
}.items():  # fmt: skip
    movement(_name)(lambda self, other, function=_function: function(self, other))


@movement("any", "all")
def any_or_all(self: Raw, name: str, dim: Any = None, keepdim: bool = False) -> Raw:
    """Whether one is, or all are."""
    axes = all_axes(dim, self.ndim)
    return np.asarray((np.any if name == "any" else np.all)(self, axes, keepdims=keepdim))


@movement("amax", "amin")
def extreme(self: Raw, name: str, dim: Any = (), keepdim: bool = False) -> Raw:
    """The largest or smallest of axes."""
    axes = all_axes(dim, self.ndim)
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
    if not self.ndim:
        return [self, None] if k else [self.reshape(-1)[:0], None]
    order = np.sort(self.astype(np.float64), dim)
    order = np.flip(order, dim) if largest else order
    return [order.take(np.arange(k), dim).astype(self.dtype), None] if sorted else [None, None]


@movement("sort")
def sort(self: Raw, dim: int = -1, descending: bool = False, stable: bool | None = None) -> list[Any]:
    """In order; places are not told."""
    order = np.sort(self, dim) if self.ndim else self
    return [np.flip(order, dim) if descending and self.ndim else order, None]


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


@movement("copy", "_to_copy", "to")
def copy(like: Raw, self: Raw, src: Raw | None = None, **_: Any) -> Raw | None:
    """In another format, rounded to nearest, ties to even."""
    given = self if src is None else src
    if like.dtype == bool:
        return np.broadcast_to(given != 0, like.shape)
    if given.dtype.kind == "c" and like.dtype.kind != "c":
        given = given.real
    if given.dtype.kind in "fV" and like.dtype.kind in "iu":
        with np.errstate(invalid="ignore"):  # what is no number becomes whatever the processor makes of it
            return np.broadcast_to(np.trunc(given.astype(np.float64)).astype(like.dtype), like.shape)
    if given.dtype == np.float64 and like.dtype.itemsize == 2:  # PyTorch goes by way of float32
        given = given.astype(np.float32)
    return np.broadcast_to(given.astype(like.dtype), like.shape)
