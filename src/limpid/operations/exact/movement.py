"""Movement of data: the same bits in another place, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from limpid.operations.exact.exact import MOVED, movement

Raw = np.ndarray[Any, np.dtype[Any]]
"""An array in the format that the engine has it in."""


@movement("view", "_unsafe_view", "reshape", "_reshape_alias", "_reshape_copy")
def view(self: Raw, size: list[int]) -> Raw:
    """The same entries in another shape."""
    return self.reshape(size)


@movement("alias", "detach", "clone", "contiguous", "lift_fresh", "positive", "alias_copy")
def alias(self: Raw) -> Raw:
    """The same array."""
    return self


@movement("_conj", "_conj_physical", "conj_physical", "conj")
def conjugate(self: Raw) -> Raw:
    """The imaginary part with the other sign."""
    return self.conj() if self.dtype.kind == "c" else self


@movement("_neg_view")
def negative(self: Raw) -> Raw:
    """With the other sign."""
    return -self


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


@movement("as_strided", "as_strided_copy")
def as_strided(self: Raw, size: list[int], stride: list[int], storage: Raw, storage_offset: int = 0) -> Raw:
    """Other steps through the memory of an array."""
    steps = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[storage_offset:], size, steps)


@movement("as_strided_scatter")
def as_strided_scatter(
    self: Raw, src: Raw, size: list[int], stride: list[int], storage: Raw, storage_offset: int = 0
) -> Raw | None:
    """An array set at such steps: told only where it lies in order, and alone."""
    if not self.flags.c_contiguous or storage.size != self.size:
        return None
    made = self.copy()
    as_strided(made, size, stride, made.reshape(-1), storage_offset)[...] = src
    return made


@movement("unfold")
def unfold(self: Raw, dimension: int, size: int, step: int) -> Raw:
    """Windows of an axis."""
    if not self.ndim:
        return self.reshape(-1)[:size]
    seen = np.lib.stride_tricks.sliding_window_view(self, size, dimension)
    return part(seen, dimension % self.ndim, None, None, step)


@movement("flip")
def flip(self: Raw, dims: list[int]) -> Raw:
    """Turned round."""
    return np.flip(self, tuple(dims))


@movement("roll")
def roll(self: Raw, shifts: Sequence[int], dims: Sequence[int] = ()) -> Raw:
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


@movement("diagonal_backward")
def diagonal_backward(grad_output: Raw, input_sizes: list[int], offset: int, dim1: int, dim2: int) -> Raw:
    """A diagonal's gradient, zeros beside it."""
    return diagonal_scatter(np.zeros(input_sizes, grad_output.dtype), grad_output, offset, dim1, dim2)


@movement("diagonal_scatter")
def diagonal_scatter(self: Raw, src: Raw, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Raw:
    """Another diagonal."""
    made = self.copy()
    own = np.moveaxis(made, (dim1, dim2), (-2, -1))
    rows = np.arange(src.shape[-1]) + max(-offset, 0)
    own[..., rows, rows + offset] = src
    return made


@movement("diag_embed")
def diag_embed(self: Raw, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Raw:
    """An axis as a diagonal."""
    size = self.shape[-1] + abs(offset)
    made = np.zeros((*self.shape[:-1], size, size), self.dtype)
    return np.moveaxis(diagonal_scatter(made, self, offset, -2, -1), (-2, -1), (dim1, dim2))


@movement("slice_scatter")
def slice_scatter(
    self: Raw, src: Raw, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Raw:
    """Every so many entries between two places of an axis set."""
    made = self.copy()
    part(made, dim, start, end, step)[...] = src
    return made


@movement("select_scatter")
def select_scatter(self: Raw, src: Raw, dim: int, index: int) -> Raw:
    """One entry of an axis set."""
    made = self.copy()
    made[(slice(None),) * (dim % self.ndim) + (index,)] = src
    return made


@movement("pixel_shuffle")
def pixel_shuffle(self: Raw, upscale_factor: int) -> Raw:
    """Channels laid out as pixels."""
    *batch, channels, height, width = self.shape
    k = upscale_factor
    wide = self.reshape(math.prod(batch), channels // k**2, k, k, height, width).transpose(0, 1, 4, 2, 5, 3)
    return wide.reshape(*batch, channels // k**2, height * k, width * k)


@movement("pixel_unshuffle")
def pixel_unshuffle(self: Raw, downscale_factor: int) -> Raw:
    """Pixels laid out as channels."""
    *batch, channels, height, width = self.shape
    k = downscale_factor
    wide = self.reshape(math.prod(batch), channels, height // k, k, width // k, k).transpose(0, 1, 3, 5, 2, 4)
    return wide.reshape(*batch, channels * k**2, height // k, width // k)


@movement("channel_shuffle")
def channel_shuffle(self: Raw, groups: int) -> Raw:
    """Channels of all groups in turn."""
    batch, channels, *rest = self.shape
    return self.reshape(batch, groups, channels // groups, *rest).swapaxes(1, 2).reshape(self.shape)


@movement("narrow_copy")
def narrow(self: Raw, dim: int, start: int, length: int) -> Raw:
    """So many entries of an axis."""
    return part(self, dim, start, start + length)


@movement("max_unpool2d", "max_unpool3d")
def max_unpool(self: Raw, indices: Raw, output_size: list[int], stride: Any = None, padding: Any = None) -> Raw:
    """Entries put back to where they were the largest, zeros beside them."""
    axes, rows = len(output_size), math.prod(self.shape[: -len(output_size)])
    made = np.zeros((rows, math.prod(output_size)), self.dtype)
    np.put_along_axis(made, indices.reshape(rows, -1), self.reshape(rows, -1), 1)
    return made.reshape(*self.shape[:-axes], *output_size)


@movement("im2col")
def windows_as_columns(
    self: Raw, kernel_size: list[int], dilation: list[int], padding: list[int], stride: list[int]
) -> Raw:
    """Every window of a picture as a column."""
    wide = np.pad(self, [(0, 0)] * (self.ndim - 2) + [(one, one) for one in padding])
    whole = [(size - 1) * step + 1 for size, step in zip(kernel_size, dilation, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(wide, whole, (-2, -1))
    seen = seen[..., :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    columns = np.moveaxis(seen, (-2, -1), (-4, -3))
    return columns.reshape(*self.shape[:-3], self.shape[-3] * math.prod(kernel_size), -1)


@movement("rot90")
def rot90(self: Raw, k: int = 1, dims: Sequence[int] = (0, 1)) -> Raw:
    """Turned by right angles."""
    return np.rot90(self, k, (dims[0], dims[1]))


@movement("view_as_real")
def view_as_real(self: Raw) -> Raw:
    """Both parts of complex numbers along a last axis."""
    return np.stack([self.real, self.imag], -1)


@movement("view_as_complex")
def view_as_complex(self: Raw) -> Raw:
    """Complex numbers of a last axis of two."""
    return complex_of(self[..., 0], self[..., 1])


@movement("complex")
def complex_of(real: Raw, imag: Raw) -> Raw:
    """Complex numbers of both parts."""
    real, imag = np.broadcast_arrays(real, imag)
    made = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    made.real, made.imag = real, imag
    return made


for _name in (
    "view", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand", "slice", "select", "split",
    "split_with_sizes", "unbind", "unfold", "diagonal", "view_as_real", "view_as_complex",
):  # fmt: skip
    movement(f"{_name}_copy")(MOVED[_name])
