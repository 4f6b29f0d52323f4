"""Pooling and stretching of pictures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.convolution import padded, transposed_to, widened, windows
from limpid.operations.exact.exact import Exact, arithmetic, growth, summed


@arithmetic("max_pool2d_with_indices")
def max_pool2d(
    self: Array, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> list[Exact | None] | None:  # fmt: skip
    """The largest of every window; its place is not told, as two may be as large."""
    size = widened(kernel_size, 2)
    step, padding = (widened(stride, 2) if np.size(stride) else size), widened(padding, 2)
    if ceil_mode:
        return None
    wide = [(0, 0)] * (self.ndim - 2) + [(one, one) for one in padding]
    seen = windows(np.pad(self, wide, constant_values=-np.inf), size, step, widened(dilation, 2))
    return [Exact(seen.max((-2, -1))), None]


@arithmetic("avg_pool2d_backward")
def avg_pool2d_backward(
    grad_output: Array, self: Array, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Exact | None:  # fmt: skip
    """A share of every window's gradient."""
    size, padding = widened(kernel_size, 2), widened(padding, 2)
    step = widened(stride, 2) if np.size(stride) else size
    if ceil_mode or divisor_override or (any(padding) and not count_include_pad):
        return None
    kernel = np.full((grad_output.shape[1], 1, *size), 1 / math.prod(size))

    def spread(bar: Array) -> Array:
        return transposed_to(bar, kernel, step, padding, [1, 1], self.shape, grad_output.shape[1])

    return Exact(spread(grad_output), (growth(math.prod(size)) + 4) * spread(np.abs(grad_output)))


@arithmetic("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad_output: Array, self: Array) -> Exact:
    """A share of the gradient of every window that an entry is in."""
    value, size = np.zeros_like(self), np.zeros_like(self)
    (height, width), (tall, broad) = self.shape[-2:], grad_output.shape[-2:]
    for i, j in np.ndindex(tall, broad):
        rows = slice(i * height // tall, -(-(i + 1) * height // tall))
        columns = slice(j * width // broad, -(-(j + 1) * width // broad))
        count = (rows.stop - rows.start) * (columns.stop - columns.start)
        value[..., rows, columns] += (grad_output[..., i, j] / count)[..., None, None]
        size[..., rows, columns] += np.abs(grad_output[..., i, j] / count)[..., None, None]
    return Exact(value, 8 * size)


@arithmetic("upsample_nearest2d_backward")
def upsample_backward(
    grad_output: Array, output_size: list[int], input_size: list[int], scales_h: float | None = None,
    scales_w: float | None = None,
) -> Exact:  # fmt: skip
    """The gradients of all that was made of an entry."""
    value, size = grad_output, np.abs(grad_output)
    for axis, scale in ((-2, scales_h), (-1, scales_w)):
        step = 1 / scale if scale else input_size[axis] / output_size[axis]
        own = np.minimum(np.floor(np.arange(output_size[axis]) * step).astype(int), input_size[axis] - 1)
        picks = (own[None, :] == np.arange(input_size[axis])[:, None]).astype(np.float64)
        value, size = (np.moveaxis(np.tensordot(picks, one, (1, axis)), 0, axis) for one in (value, size))
    return Exact(value, growth(math.prod(output_size) // math.prod(input_size[-2:]) + 1) * size)


def _between(length: int, size: int, align: bool, scale: float | None) -> Array:
    """Shares of a row's entries in each place of a stretched one: linear between neighbours."""
    places = np.arange(size, dtype=np.float64)
    if align:
        at = places * ((length - 1) / (size - 1) if size > 1 else 0.0)
    else:
        at = np.maximum((places + 0.5) * (1 / scale if scale else length / size) - 0.5, 0.0)
    low = np.minimum(np.floor(at).astype(int), length - 1)
    high = np.minimum(low + 1, length - 1)
    share = np.clip(at - low, 0, 1)
    made = np.zeros((size, length))
    np.add.at(made, (np.arange(size), low), 1 - share)
    np.add.at(made, (np.arange(size), high), share)
    return made


def _stretched(x: Array, shares: list[Array]) -> Array:
    for axis, one in zip((-2, -1), shares, strict=True):
        x = np.moveaxis(np.tensordot(one, x, (1, axis)), 0, axis)
    return x


@arithmetic("upsample_bilinear2d")
def upsample_bilinear(
    self: Array, output_size: list[int], align_corners: bool, scales_h: float | None = None,
    scales_w: float | None = None,
) -> Exact:  # fmt: skip
    """Between the four neighbours; a place in float32 is off by its own size."""
    shares = [
        _between(self.shape[axis], output_size[axis], align_corners, scale)
        for axis, scale in ((-2, scales_h), (-1, scales_w))
    ]
    return Exact(_stretched(self, shares), (8 + 4 * max(self.shape[-2:])) * np.abs(self).max((-2, -1), keepdims=True))


@arithmetic("upsample_bilinear2d_backward")
def upsample_bilinear_backward(
    grad_output: Array, output_size: list[int], input_size: list[int], align_corners: bool,
    scales_h: float | None = None, scales_w: float | None = None,
) -> Exact:  # fmt: skip
    """The same shares turned round."""
    shares = [
        _between(input_size[axis], output_size[axis], align_corners, scale).T
        for axis, scale in ((-2, scales_h), (-1, scales_w))
    ]
    size = np.abs(grad_output).max((-2, -1), keepdims=True) * math.prod(output_size) / math.prod(input_size[-2:])
    return Exact(_stretched(grad_output, shares), (16 + 8 * max(input_size[-2:])) * size)


@arithmetic("avg_pool2d")
def avg_pool2d(
    self: Array, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Exact | None:  # fmt: skip
    """The mean of every window."""
    size, padding = widened(kernel_size, 2), widened(padding, 2)
    step = widened(stride, 2) if np.size(stride) else size
    if ceil_mode or divisor_override or (any(padding) and not count_include_pad):
        return None
    seen = windows(padded(self, padding), size, step, [1, 1])
    found = summed(seen, (-2, -1))
    count = math.prod(size)
    return Exact(found.value / count, (np.asarray(found.rounding) + 4 * np.abs(found.value)) / count)


@arithmetic("_adaptive_avg_pool2d")
def adaptive_avg_pool2d(self: Array, output_size: list[int]) -> Exact:
    """The mean of windows that cover the picture."""
    value, rounding = (np.zeros((*self.shape[:-2], *output_size)) for _ in range(2))
    height, width = self.shape[-2:]
    for i, j in np.ndindex(*output_size):
        rows = slice(i * height // output_size[0], -(-(i + 1) * height // output_size[0]))
        columns = slice(j * width // output_size[1], -(-(j + 1) * width // output_size[1]))
        part = self[..., rows, columns]
        value[..., i, j] = part.mean((-2, -1))
        rounding[..., i, j] = (growth(part.shape[-1] * part.shape[-2]) + 4) * np.abs(part).mean((-2, -1))
    return Exact(value, rounding)
