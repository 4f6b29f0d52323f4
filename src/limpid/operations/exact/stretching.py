"""Lines, pictures and volumes of other sizes: each entry a weighted sum of those near it, axis by axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.exact import Exact, arithmetic, growth, movement
from limpid.operations.exact.movement import Raw

CUBIC = -0.75
"""The slope that PyTorch's cubic kernel has (Keys 1981)."""


def weighed(x: Array, shares: list[Array]) -> Array:
    """Sums over the last axes by weights (places, entries) of each."""
    for axis, one in enumerate(shares, -len(shares)):
        x = np.moveaxis(np.tensordot(one, x, (1, axis)), 0, axis)
    return x


def _scales(axes: int, given: dict[str, Any]) -> list[float | None]:
    """Of each axis, where they were asked for: `scales` of a line, `scales_d`, `_h` and `_w` else."""
    if axes == 1:
        return [given["scales"]]
    return [given[f"scales_{axis}"] for axis in "dhw"[-axes:]]


def _nearest(length: int, size: int, scale: float | None, middle: bool) -> Raw:
    """The entry that each place takes, in float32 as the engine has it."""
    step = np.float32(1 / scale) if scale else np.float32(length) / np.float32(size)
    at = (np.arange(size, dtype=np.float32) + np.float32(0.5 if middle else 0.0)) * step
    return np.minimum(np.floor(at).astype(int), length - 1)


@movement("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
          "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")  # fmt: skip
def nearest(
    self: Raw, name: str, output_size: list[int], scales: float | None = None, scales_d: float | None = None,
    scales_h: float | None = None, scales_w: float | None = None,
) -> Raw:  # fmt: skip
    """The nearest entry, by the corner of a place or by its middle."""
    axes = len(output_size)
    given = _scales(axes, {"scales": scales, "scales_d": scales_d, "scales_h": scales_h, "scales_w": scales_w})
    for axis, size, scale in zip(range(-axes, 0), output_size, given, strict=True):
        self = self.take(_nearest(self.shape[axis], size, scale, "exact" in name), axis)
    return self


@arithmetic("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward",
            "_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d_backward",
            "_upsample_nearest_exact3d_backward")  # fmt: skip
def nearest_backward(
    grad_output: Array, name: str, output_size: list[int], input_size: list[int], scales: float | None = None,
    scales_d: float | None = None, scales_h: float | None = None, scales_w: float | None = None,
) -> Exact:  # fmt: skip
    """The gradients of all that was made of an entry."""
    axes = len(output_size)
    given = _scales(axes, {"scales": scales, "scales_d": scales_d, "scales_h": scales_h, "scales_w": scales_w})
    picks = [
        (_nearest(length, size, scale, "exact" in name)[None, :] == np.arange(length)[:, None]).astype(np.float64)
        for length, size, scale in zip(input_size[-axes:], output_size, given, strict=True)
    ]
    count = growth(math.prod(-(-size // length) for size, length in zip(output_size, input_size[-axes:], strict=True)))
    return Exact(weighed(grad_output, picks), (count + 1) * weighed(np.abs(grad_output), picks))


def _between(length: int, size: int, align: bool, scale: float | None, cubic: bool) -> Array:
    """Shares of a row's entries in each place of a stretched one: of two neighbours, or of four."""
    places = np.arange(size, dtype=np.float64)
    if align:
        at = places * ((length - 1) / (size - 1) if size > 1 else 0.0)
    else:
        at = (places + 0.5) * (1 / scale if scale else length / size) - 0.5
        at = at if cubic else np.maximum(at, 0.0)
    low = np.floor(at).astype(int)
    low = low if cubic else np.minimum(low, length - 1)
    share = at - low if cubic else np.clip(at - low, 0, 1)
    parts = _cubic(share) if cubic else [1 - share, share]
    made = np.zeros((size, length))
    for offset, part in enumerate(parts, -1 if cubic else 0):
        np.add.at(made, (np.arange(size), np.clip(low + offset, 0, length - 1)), part)
    return made


def _cubic(t: Array) -> list[Array]:
    """Weights of the entries before, at, after and two after a place."""

    def near(x: Array) -> Array:
        return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1

    def far(x: Array) -> Array:
        return ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


STRETCHED = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")


@arithmetic(*STRETCHED)
def stretched(
    self: Array, name: str, output_size: list[int], align_corners: bool, scales: float | None = None,
    scales_d: float | None = None, scales_h: float | None = None, scales_w: float | None = None,
) -> Exact:  # fmt: skip
    """Between the neighbours; a place in float32 is off by its own size."""
    axes = len(output_size)
    given = _scales(axes, {"scales": scales, "scales_d": scales_d, "scales_h": scales_h, "scales_w": scales_w})
    shares = [
        _between(self.shape[axis], size, align_corners, scale, "cubic" in name)
        for axis, size, scale in zip(range(-axes, 0), output_size, given, strict=True)
    ]
    over, most = tuple(range(-axes, 0)), max(self.shape[-axes:])
    return Exact(weighed(self, shares), 2 * axes * (2 + most) * np.abs(self).max(over, keepdims=True))


@arithmetic(*(f"{name}_backward" for name in STRETCHED))
def stretched_backward(
    grad_output: Array, name: str, output_size: list[int], input_size: list[int], align_corners: bool,
    scales: float | None = None, scales_d: float | None = None, scales_h: float | None = None,
    scales_w: float | None = None,
) -> Exact:  # fmt: skip
    """The same shares turned round."""
    axes = len(output_size)
    given = _scales(axes, {"scales": scales, "scales_d": scales_d, "scales_h": scales_h, "scales_w": scales_w})
    shares = [
        _between(length, size, align_corners, scale, "cubic" in name).T
        for length, size, scale in zip(input_size[-axes:], output_size, given, strict=True)
    ]
    over, most = tuple(range(-axes, 0)), max(input_size[-axes:])
    size = np.abs(grad_output).max(over, keepdims=True) * math.prod(
        -(-size // length) for size, length in zip(output_size, input_size[-axes:], strict=True))  # fmt: skip
    return Exact(weighed(grad_output, shares), 4 * axes * (2 + most) * size)
