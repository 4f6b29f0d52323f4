"""Movement of data: the same bits in another place, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from limpid.operations.exact.exact import movement

Raw = np.ndarray[Any, np.dtype[Any]]
"""An array in the format that the engine has it in."""


@movement("view", "_unsafe_view", "reshape", "_reshape_alias", "_reshape_copy")
def view(self: Raw, size: list[int]) -> Raw:
    """The same entries in another shape."""
    return self.reshape(size)


@movement("alias", "detach", "clone", "contiguous", "lift_fresh", "_conj", "positive", "alias_copy")
def alias(self: Raw) -> Raw:
    """The same array."""
    return self


@movement("_local_scalar_dense", "item")
def item(self: Raw) -> Any:
    """The one number of an array."""
    return self.reshape(-1)[0]


@movement("t")
def t(self: Raw) -> Raw:
    """Rows and columns exchanged."""
    return self.T


@movement("transpose")
def transpose(self: Raw, dim0: int, dim1: int) -> Raw:
    """Two axes exchanged."""
    return self.swapaxes(dim0, dim1) if self.ndim else self


@movement("permute")
def permute(self: Raw, dims: list[int]) -> Raw:
    """Axes in another order."""
    return self.transpose(dims)


@movement("unsqueeze")
def unsqueeze(self: Raw, dim: int) -> Raw:
    """An axis of one more."""
    return np.expand_dims(self, dim)


@movement("squeeze")
def squeeze(self: Raw, dim: Any = None) -> Raw:
    """Without axes of one."""
    wanted = range(self.ndim) if dim is None else [axis % max(self.ndim, 1) for axis in np.atleast_1d(dim)]
    return self.squeeze(tuple(axis for axis in wanted if self.ndim and self.shape[axis] == 1))


@movement("expand")
def expand(self: Raw, size: list[int], implicit: bool = False) -> Raw:
    """Repeated along axes of one."""
    own = (1,) * (len(size) - self.ndim) + self.shape
    return np.broadcast_to(
        self.reshape(own), [have if want == -1 else want for have, want in zip(own, size, strict=True)]
    )


@movement("repeat")
def repeat(self: Raw, repeats: list[int]) -> Raw:
    """Laid out so many times."""
    return np.tile(self, repeats)


@movement("slice")
def part(self: Raw, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Raw:
    """Every so many entries between two places of an axis."""
    return self[(slice(None),) * (dim % max(self.ndim, 1)) + (slice(start, end, step),)]


@movement("select")
def select(self: Raw, dim: int, index: int) -> Raw:
    """One entry of an axis."""
    return self.take(index, dim)


@movement("slice_backward")
def slice_backward(grad_output: Raw, input_sizes: list[int], dim: int, start: int, end: int, step: int) -> Raw:
    """A part's gradient, zeros around it."""
    whole = np.zeros(input_sizes, grad_output.dtype)
    part(whole, dim, start, end, step)[...] = grad_output
    return whole


@movement("select_backward")
def select_backward(grad_output: Raw, input_sizes: list[int], dim: int, index: int) -> Raw:
    """An entry's gradient, zeros around it."""
    whole = np.zeros(input_sizes, grad_output.dtype)
    whole[(slice(None),) * (dim % len(input_sizes)) + (index,)] = grad_output
    return whole


@movement("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_split_with_sizes")
def split(
    self: Raw, dim: int = 0, split_size: int | None = None, split_sizes: list[int] | None = None,
    chunks: int | None = None,
) -> list[Raw]:  # fmt: skip
    """Parts of an axis, one after the other."""
    length = self.shape[dim]
    if split_sizes is not None:
        places = np.cumsum(split_sizes)[:-1]
    else:
        each = split_size if split_size is not None else -(-length // int(chunks or 1))
        places = np.arange(each, length, each)
    return np.split(self, places, dim)


@movement("floor_divide")
def floor_divide(self: Raw, other: Any) -> Raw | None:
    """Of whole numbers."""
    return self // other if self.dtype.kind in "iu" else None


@movement("histc")
def histogram(self: Raw, like: Raw, bins: int = 100, min: float = 0, max: float = 0) -> Raw:
    """How many lie in each of so many equal parts."""
    low, high = (min, max) if min != max else (self.min(), self.max())
    return np.histogram(self.astype(np.float64), bins, (float(low), float(high)))[0].astype(like.dtype)


@movement("unbind")
def unbind(self: Raw, dim: int = 0) -> list[Raw]:
    """The entries of an axis."""
    return list(np.moveaxis(self, dim, 0))


@movement("cat")
def cat(tensors: list[Raw], dim: int = 0) -> Raw:
    """One after the other; an array of nothing counts for none."""
    return np.concatenate([one for one in tensors if one.shape != (0,)] or tensors, dim)


@movement("stack")
def stack(tensors: list[Raw], dim: int = 0) -> Raw:
    """Side by side along a new axis."""
    return np.stack(tensors, dim)


@movement("as_strided")
def as_strided(self: Raw, size: list[int], stride: list[int], storage_offset: int | None = None) -> Raw | None:
    """Other steps through the same memory: told only where the array lies in order, and alone."""
    reach = sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if not self.flags.c_contiguous or storage_offset or reach >= self.size:
        return None
    return np.lib.stride_tricks.as_strided(self, size, [step * self.itemsize for step in stride])


@movement("unfold")
def unfold(self: Raw, dimension: int, size: int, step: int) -> Raw:
    """Windows of an axis."""
    seen = np.lib.stride_tricks.sliding_window_view(self, size, dimension)
    return part(seen, dimension % self.ndim, None, None, step)


@movement("flip")
def flip(self: Raw, dims: list[int]) -> Raw:
    """Turned round."""
    return np.flip(self, tuple(dims))


@movement("roll")
def roll(self: Raw, shifts: list[int], dims: list[int] = ()) -> Raw:  # type: ignore[assignment]
    """Moved on, what falls off coming in again."""
    return np.roll(self, shifts, tuple(dims)) if len(dims) else np.roll(self, shifts)


@movement("tril")
def tril(self: Raw, diagonal: int = 0) -> Raw:
    """What is not above a diagonal."""
    return np.where(np.tri(self.shape[-2], self.shape[-1], diagonal) > 0, self, np.zeros((), self.dtype))


@movement("triu")
def triu(self: Raw, diagonal: int = 0) -> Raw:
    """What is not below a diagonal."""
    return np.where(np.tri(self.shape[-2], self.shape[-1], diagonal - 1) > 0, np.zeros((), self.dtype), self)


@movement("diagonal")
def diagonal(self: Raw, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Raw:
    """Entries of two equal indices."""
    return np.diagonal(self, offset, dim1, dim2)


@movement("constant_pad_nd")
def constant_pad(self: Raw, pad: list[int], value: float = 0) -> Raw | None:
    """A constant around it; a negative width cuts."""
    widths = [(0, 0)] * (self.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    kept = tuple(
        slice(max(-low, 0), size - max(-high, 0)) for (low, high), size in zip(widths, self.shape, strict=True)
    )
    wide = [(max(low, 0), max(high, 0)) for low, high in widths]
    return np.pad(self[kept], wide, constant_values=np.asarray(value).astype(self.dtype))
