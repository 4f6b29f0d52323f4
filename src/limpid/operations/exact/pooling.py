"""Pooling over windows of lines, pictures and volumes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.convolution import widened, windows
from limpid.operations.exact.exact import Exact, arithmetic, growth
from limpid.operations.exact.indexing import added_at
from limpid.operations.exact.stretching import weighed


@arithmetic("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    self: Array, name: str, results: list[Any], kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> list[Exact | None]:  # fmt: skip
    """The largest of every window; its place is not told, as two may be as large."""
    axes = 2 if "2d" in name else 3
    size, jump, padding = widened(kernel_size, axes), widened(dilation, axes), widened(padding, axes)
    step, places = (widened(stride, axes) if np.size(stride) else size), results[0].shape[-axes:]
    wide = [(0, 0)] * (self.ndim - axes)
    for axis in range(axes):  # a last window may reach over the end
        reach = (places[axis] - 1) * step[axis] + (size[axis] - 1) * jump[axis] + 1
        wide.append((padding[axis], max(reach - self.shape[axis - axes] - padding[axis], 0)))
    seen = windows(np.pad(self, wide, constant_values=-np.inf), size, step, jump)
    index: tuple[Any, ...] = (..., *(slice(0, count) for count in places), *(slice(None) for _ in size))
    seen = seen[index]
    return [Exact(seen.max(tuple(range(-axes, 0)))), None]


def _each_window(length: int, count: int) -> list[slice]:
    """Windows that cover an axis, as even as they can be."""
    return [slice(at * length // count, -(-(at + 1) * length // count)) for at in range(count)]


@arithmetic("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(self: Array, output_size: list[int]) -> list[Exact | None]:
    """The largest of windows that cover the whole."""
    axes = len(output_size)
    value = np.zeros((*self.shape[:-axes], *output_size))
    covers = [_each_window(length, count) for length, count in zip(self.shape[-axes:], output_size, strict=True)]
    for place in np.ndindex(*output_size):
        inside = tuple(cover[at] for cover, at in zip(covers, place, strict=True))
        value[(..., *place)] = self[(..., *inside)].max(tuple(range(-axes, 0)))
    return [Exact(value), None]


@arithmetic(
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward",
)  # fmt: skip
def max_pool_backward(
    grad_output: Array, self: Array, indices: Array, name: str, kernel_size: Any = None, stride: Any = None,
    padding: Any = None, dilation: Any = None, ceil_mode: bool = False,
) -> Exact:  # fmt: skip
    """The gradient of each window added to the entry that was its largest."""
    axes = 2 if "2d" in name else 3
    rows = math.prod(self.shape[:-axes])
    places = np.asarray(indices).reshape(rows, -1)
    found = added_at((rows, math.prod(self.shape[-axes:])), (np.arange(rows)[:, None], places),
                     grad_output.reshape(rows, -1))  # fmt: skip
    return Exact(*(np.asarray(one).reshape(self.shape) for one in (found.value, found.rounding, found.storage)))


def _averaging(
    shape: tuple[int, ...], places: tuple[int, ...], kernel_size: Any, stride: Any, padding: Any, own_only: bool,
    divisor: int | None,
) -> list[Array]:  # fmt: skip
    """For each axis, what share of an entry each window takes: (places, entries). A divisor counts once."""
    axes = len(places)
    size, padding = widened(kernel_size, axes), widened(padding, axes)
    step = widened(stride, axes) if np.size(stride) else size
    found = []
    for axis in range(axes):
        length = shape[axis - axes]
        begin = np.arange(places[axis]) * step[axis] - padding[axis]
        end = np.minimum(begin + size[axis], length + padding[axis])
        at = np.arange(length)
        inside = ((at >= begin[:, None]) & (at < end[:, None])).astype(np.float64)
        over = inside.sum(1) if own_only else end - begin
        found.append(inside / (1.0 if divisor else np.maximum(over, 1)[:, None]))
    if divisor:
        found[0] = found[0] / divisor
    return found


@arithmetic("avg_pool2d", "avg_pool3d")
def avg_pool(
    self: Array, name: str, results: list[Any], kernel_size: Any, stride: Any = (), padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Exact:  # fmt: skip
    """The mean of every window."""
    axes = 2 if "2d" in name else 3
    shares = _averaging(self.shape, results[0].shape[-axes:], kernel_size, stride, padding, not count_include_pad,
                        divisor_override)  # fmt: skip
    count = growth(math.prod(widened(kernel_size, axes)))
    return Exact(weighed(self, shares), (count + 4) * weighed(np.abs(self), [np.abs(one) for one in shares]))


@arithmetic("avg_pool2d_backward", "avg_pool3d_backward")
def avg_pool_backward(
    grad_output: Array, self: Array, name: str, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Exact:  # fmt: skip
    """A share of every window's gradient."""
    axes = 2 if "2d" in name else 3
    shares = _averaging(self.shape, grad_output.shape[-axes:], kernel_size, stride, padding, not count_include_pad,
                        divisor_override)  # fmt: skip
    turned, count = [one.T for one in shares], growth(math.prod(widened(kernel_size, axes)))
    return Exact(
        weighed(grad_output, turned), (count + 4) * weighed(np.abs(grad_output), [np.abs(one) for one in turned])
    )


@arithmetic("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(grad_output: Array, self: Array, name: str) -> Exact:
    """A share of the gradient of every window that an entry is in."""
    axes = 2 if "2d" in name else 3
    value, size = np.zeros_like(self), np.zeros_like(self)
    counts = grad_output.shape[-axes:]
    covers = [_each_window(length, count) for length, count in zip(self.shape[-axes:], counts, strict=True)]
    for place in np.ndindex(*counts):
        inside = (..., *(cover[at] for cover, at in zip(covers, place, strict=True)))
        share = (grad_output[(..., *place)] / value[inside].shape[-1])[(..., *(None for _ in counts))]
        share = share / math.prod(value[inside].shape[-axes:-1])
        value[inside] += share
        size[inside] += np.abs(share)
    return Exact(value, 8 * size)


@arithmetic("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(self: Array, output_size: list[int]) -> Exact:
    """The mean of windows that cover the whole."""
    axes = len(output_size)
    value, rounding = (np.zeros((*self.shape[:-axes], *output_size)) for _ in range(2))
    covers = [_each_window(length, count) for length, count in zip(self.shape[-axes:], output_size, strict=True)]
    for place in np.ndindex(*output_size):
        inside = self[(..., *(cover[at] for cover, at in zip(covers, place, strict=True)))]
        over = tuple(range(-axes, 0))
        value[(..., *place)] = inside.mean(over)
        rounding[(..., *place)] = (growth(math.prod(inside.shape[-axes:])) + 4) * np.abs(inside).mean(over)
    return Exact(value, rounding)
