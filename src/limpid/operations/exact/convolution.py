"""Convolutions, by windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.exact import Exact, arithmetic, growth, summed


def widened(value: Any, count: int) -> list[int]:
    values = [int(one) for one in np.atleast_1d(value)]
    return values * count if len(values) == 1 else values


def windows(x: Array, size: list[int], stride: list[int], dilation: list[int]) -> Array:
    """All windows over the last axes: (batch, channels, places …, window …)."""
    whole = [(one - 1) * step + 1 for one, step in zip(size, dilation, strict=True)]
    axes = tuple(range(x.ndim - len(size), x.ndim))
    seen = np.lib.stride_tricks.sliding_window_view(x, whole, axes)
    places = tuple(slice(None, None, step) for step in stride)
    inside = tuple(slice(None, None, step) for step in dilation)
    index: tuple[Any, ...] = (..., *places, *inside)
    made: Array = seen[index]
    return made


def padded(x: Array, padding: list[int]) -> Array:
    return np.pad(x, [(0, 0)] * (x.ndim - len(padding)) + [(one, one) for one in padding])


def _convolved(x: Array, weight: Array, stride: list[int], dilation: list[int], groups: int) -> Array:
    axes = weight.ndim - 2
    seen = windows(x, list(weight.shape[2:]), stride, dilation)
    batch, places = x.shape[0], seen.shape[2 : 2 + axes]
    seen = seen.reshape(batch, groups, x.shape[1] // groups, math.prod(places), -1)
    rows = np.moveaxis(seen, 3, 2).reshape(batch, groups, math.prod(places), -1)
    kernels = weight.reshape(groups, weight.shape[0] // groups, -1)
    made = np.einsum("bgpk,gok->bgop", rows, kernels, optimize=True)
    return made.reshape(batch, weight.shape[0], *places)


def transposed_to(
    x: Array, weight: Array, stride: list[int], padding: list[int], dilation: list[int], shape: tuple[int, ...],
    groups: int,
) -> Array:  # fmt: skip
    """What a convolution of such weights takes to `x`, turned round: the gradient of its input, of this shape."""
    axes = weight.ndim - 2
    out = np.zeros((*shape[:2], *(size + 2 * pad for size, pad in zip(shape[2:], padding, strict=True))))
    wide = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    kernels = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    for place in np.ndindex(*weight.shape[2:]):
        part = np.einsum("bgo...,goc->bgc...", wide, kernels[(slice(None), slice(None), slice(None), *place)])
        where = tuple(
            slice(at * step, at * step + (size - 1) * jump + 1, jump)
            for at, step, size, jump in zip(place, dilation, x.shape[2:], stride, strict=True)
        )
        out[(slice(None), slice(None), *where)] += part.reshape(x.shape[0], shape[1], *x.shape[2:])
    inner = tuple(slice(pad, pad + size) for pad, size in zip(padding, shape[2:], strict=True))
    assert len(inner) == axes
    return out[(slice(None), slice(None), *inner)]


def _weight_gradient(
    bar: Array, x: Array, weight: Array, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Array:
    """Σ over places and rows of ȳ by the window that it came from."""
    seen = windows(padded(x, padding), list(weight.shape[2:]), stride, dilation)
    seen = seen[(slice(None), slice(None), *(slice(0, size) for size in bar.shape[2:]))]
    batch, places = bar.shape[0], math.prod(bar.shape[2:])
    rows = seen.reshape(batch, groups, x.shape[1] // groups, places, -1)
    taught = bar.reshape(batch, groups, bar.shape[1] // groups, places)
    made: Array = np.einsum("bgcpk,bgop->gock", rows, taught, optimize=True).reshape(weight.shape)
    return made


@arithmetic("convolution", "_convolution", "mkldnn_convolution")
def convolution(
    input: Array, weight: Array, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool = False,
    output_padding: Any = 0, groups: int = 1,
) -> Exact:  # fmt: skip
    """Σ over windows and channels of w x, + b."""
    axes = weight.ndim - 2
    stride, padding, dilation = widened(stride, axes), widened(padding, axes), widened(dilation, axes)

    def made(x: Array, kernel: Array) -> Array:
        if not transposed:
            return _convolved(padded(x, padding), kernel, stride, dilation, groups)
        extra = widened(output_padding, axes)
        sizes = [
            (x.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel.shape[2 + i] - 1) + extra[i] + 1
            for i in range(axes)
        ]
        return transposed_to(
            x, kernel, stride, padding, dilation, (x.shape[0], kernel.shape[1] * groups, *sizes), groups
        )

    value, size = made(input, weight), made(np.abs(input), np.abs(weight))
    count = growth(math.prod(weight.shape[1:]) if not transposed else weight[:, 0].size)
    if bias is not None:
        shift = np.reshape(bias, (1, -1, *(1 for _ in range(axes))))
        value, size = value + shift, size + np.abs(shift)
    return Exact(value, (count + 4) * size)


@arithmetic("convolution_backward")
def convolution_backward(
    grad_output: Array, input: Array, weight: Array, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, output_mask: list[bool],
) -> list[Exact | None] | None:  # fmt: skip
    """Of input, weight and bias."""
    axes = weight.ndim - 2
    stride, padding, dilation = widened(stride, axes), widened(padding, axes), widened(dilation, axes)
    if transposed:
        return _of_transposed(grad_output, input, weight, stride, padding, dilation, groups, output_mask)

    def of_input(bar: Array, kernel: Array) -> Array:
        return transposed_to(bar, kernel, stride, padding, dilation, input.shape, groups)

    def of_weight(bar: Array, x: Array) -> Array:
        return _weight_gradient(bar, x, weight, stride, padding, dilation, groups)

    found: list[Exact | None] = []
    for made, a, b, terms in (
        (of_input, grad_output, weight, weight[:, 0].size),
        (of_weight, grad_output, input, grad_output[:, 0].size),
    ):
        found.append(Exact(made(a, b), (growth(terms) + 4) * made(np.abs(a), np.abs(b))))
    found.append(summed(grad_output, (0, *range(2, grad_output.ndim))))
    return [one if asked else None for one, asked in zip(found, output_mask, strict=True)]


def _of_transposed(
    bar: Array, x: Array, weight: Array, stride: list[int], padding: list[int], dilation: list[int], groups: int,
    output_mask: list[bool],
) -> list[Exact | None]:  # fmt: skip
    """The gradient of a transposed convolution is a convolution; of its weight, that of one with both exchanged."""

    inside = (slice(None), slice(None), *(slice(0, size) for size in x.shape[2:]))

    def of_input(taught: Array, kernel: Array) -> Array:
        return _convolved(padded(taught, padding), kernel, stride, dilation, groups)[inside]

    def of_weight(taught: Array, given: Array) -> Array:
        return _weight_gradient(given, taught, weight, stride, padding, dilation, groups)

    counts = growth(weight[0].size), growth(x[:, 0].size)
    found = [
        Exact(of_input(bar, weight), (counts[0] + 4) * of_input(np.abs(bar), np.abs(weight))),
        Exact(of_weight(bar, x), (counts[1] + 4) * of_weight(np.abs(bar), np.abs(x))),
        summed(bar, (0, *range(2, bar.ndim))),
    ]
    return [one if asked else None for one, asked in zip(found, output_mask, strict=True)]
