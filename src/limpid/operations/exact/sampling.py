"""Pictures and volumes read at the places of a grid: between their pixels, by cubics, or at the nearest one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.exact import Exact, arithmetic, growth

LINEAR, NEAREST, CUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2
ROUNDINGS = 16.0
"""Of a place on the way from the grid to pixels, in units of u of the numbers that it passes."""
BEND = -0.75
"""A of the cubic convolution (Keys 1981) that PyTorch takes."""
STEEP = 3.0
"""No less than the sums of sizes, along an axis, of a cubic's weights, their slopes, and a quarter of those'."""
UNIT = 2.0**-24
"""u of float32, in which places are computed whatever the format."""


class _Axis(NamedTuple):
    """Places along one axis of the pictures."""

    place: Array  # (N, …), pixels
    slope: Array  # of it by the grid's number
    error: Array  # that it may be off by, in units of u

    @property
    def near_a_jump(self) -> Array:
        """Where rounding may put it beyond a pixel."""
        return np.abs(self.place - np.round(self.place)) <= self.error * UNIT


def _axis(grid: Array, size: int, mode: int, padding: int, align: bool) -> _Axis:
    place = (grid + 1) / 2 * (size - 1) if align else ((grid + 1) * size - 1) / 2
    slope = np.full(grid.shape, (size - 1 if align else size) / 2)
    error = ROUNDINGS * ((np.abs(grid) + 1) * size + 1)
    if mode == CUBIC:
        return _Axis(place, slope, error)  # its pixels are bounded, and not its places
    if padding == REFLECTION:
        place, turned = _reflected(place, size, align)
        slope = slope * turned
    if padding != ZEROS:
        slope = np.where((place <= 0) | (place >= size - 1), 0.0, slope)
        place = np.clip(place, 0, size - 1)
    return _Axis(place, slope, error)


def _reflected(place: Array, size: int, align: bool) -> tuple[Array, Array]:
    """Places turned back at both ends until they lie between, and the sign of their slope."""
    low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
    away = np.abs(place - low)
    turns = np.floor(away / span) if span else np.zeros_like(away)
    within = away - turns * span if span else np.zeros_like(away)
    sign = np.where(place < low, -1.0, 1.0) * np.where(turns % 2 == 1, -1.0, 1.0)
    return low + np.where(turns % 2 == 1, span - within, within), sign


class _Tap(NamedTuple):
    """One of the pixels along an axis that every place reads."""

    at: Array
    inside: Array
    weight: Array
    slope: Array  # of the weight by the place


def _taps(axis: _Axis, size: int, mode: int, padding: int, align: bool) -> list[_Tap]:
    first = np.floor(axis.place)
    t = axis.place - first
    one, none = np.ones(t.shape), np.zeros(t.shape)
    if mode == NEAREST:
        return [_tap(np.rint(axis.place), size, one, none)]
    if mode == LINEAR:
        return [_tap(first, size, 1 - t, -one), _tap(first + 1, size, t, one)]
    return [_tap(_bounded(first + one, size, padding, align), size, *_cubic(t - one)) for one in (-1, 0, 1, 2)]


def _bounded(at: Array, size: int, padding: int, align: bool) -> Array:
    """Pixels that stand for those outside."""
    if padding == REFLECTION:
        at = np.rint(_reflected(at, size, align)[0])
    return at if padding == ZEROS else np.clip(at, 0, size - 1)


def _near(axis: _Axis, size: int, mode: int, padding: int, align: bool) -> list[Array]:
    """Pixels that a place may reach when rounding puts it beyond one."""
    steps = range(-2, 4) if mode == CUBIC else range(-1, 3)
    found = (np.floor(axis.place) + one for one in steps)
    at = (_bounded(one, size, padding, align) if mode == CUBIC else one for one in found)
    return [np.clip(one, 0, size - 1).astype(np.int64) for one in at]


def _cubic(t: Array) -> tuple[Array, Array]:
    """The weight of a pixel at a distance, and its slope."""
    x, sign = np.abs(t), np.sign(t)
    near = ((BEND + 2) * x - (BEND + 3)) * x * x + 1, (3 * (BEND + 2) * x - 2 * (BEND + 3)) * x
    far = ((BEND * x - 5 * BEND) * x + 8 * BEND) * x - 4 * BEND, (3 * BEND * x - 10 * BEND) * x + 8 * BEND
    return np.where(x <= 1, near[0], far[0]), sign * np.where(x <= 1, near[1], far[1])


def _tap(at: Array, size: int, weight: Array, slope: Array) -> _Tap:
    whole = np.clip(at, -1, size).astype(np.int64)
    return _Tap(np.clip(whole, 0, size - 1), (whole >= 0) & (whole < size), weight, slope)


class _Corner(NamedTuple):
    """One of the pixels around every place."""

    at: tuple[Array, ...]
    inside: Array
    weight: Array
    slopes: tuple[Array, ...]  # of the weight along each axis


def _corners(axes: list[_Axis], shape: tuple[int, ...], mode: int, padding: int, align: bool) -> Iterator[_Corner]:
    along = [_taps(axis, size, mode, padding, align) for axis, size in zip(axes, shape[2:], strict=True)]
    for taps in product(*along):
        inside = np.logical_and.reduce([one.inside for one in taps])
        slopes = tuple(
            prod([other.weight for other in taps if other is not one], start=one.slope) for one in taps
        )  # fmt: skip
        yield _Corner(tuple(one.at for one in taps), inside, np.prod([one.weight for one in taps], axis=0), slopes)


def _read(pictures: Array, corner: _Corner) -> Array:
    """(N, C, …) of a corner's pixels, 0 outside."""
    rows = np.arange(len(pictures)).reshape(-1, *[1] * (pictures.ndim - 2))
    return np.moveaxis(np.moveaxis(pictures, 1, -1)[(rows, *corner.at)], -1, 1) * corner.inside[:, None]


def _axes(grid: Array, shape: tuple[int, ...], mode: int, padding: int, align: bool) -> list[_Axis]:
    """Those of the pictures; a grid names the last one first."""
    return [_axis(grid[..., -1 - place], size, mode, padding, align) for place, size in enumerate(shape[2:])]


def _largest(input: Array) -> Array:
    found = np.abs(input).max(tuple(range(2, input.ndim)), initial=0.0)
    return found.reshape(*found.shape, *[1] * (input.ndim - 2))


@arithmetic("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(
    input: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    formats: dict[str, Any],
) -> Exact | None:
    """A weighted mean of the pixels around each place, or the nearest."""
    if formats["grid"].itemsize < 4:
        return None  # places of 16 bits, which know no pixel
    how = (interpolation_mode, padding_mode, align_corners)
    axes = _axes(grid, input.shape, *how)
    value, size = 0.0, 0.0
    for corner in _corners(axes, input.shape, *how):
        pixels, weight = _read(input, corner), corner.weight[:, None]
        value, size = value + weight * pixels, size + np.abs(weight * pixels)
    if interpolation_mode == NEAREST:
        return Exact(np.asarray(value), np.where(_is_halfway(axes), np.inf, 0.0)[:, None] + 0 * size)
    steep = 1.0 if interpolation_mode == LINEAR else STEEP ** len(axes)
    return Exact(np.asarray(value), ROUNDINGS * size + steep * _errors(axes)[:, None] * _largest(input))


def _errors(axes: list[_Axis]) -> Array:
    return np.sum([one.error for one in axes], axis=0)


def _is_halfway(axes: list[_Axis]) -> Array:
    """Where rounding may put a place nearer to another pixel."""
    found = (np.abs(one.place - np.floor(one.place) - 0.5) <= one.error * UNIT for one in axes)
    return np.logical_or.reduce(list(found))


@arithmetic("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    grad_output: Array,
    input: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: list[bool],
    formats: dict[str, Any],
) -> list[Exact | None] | None:
    """What came back, to each pixel by its weight; and to the place, by how fast the pixels change there."""
    if formats["grid"].itemsize < 4:
        return None  # places of 16 bits, which know no pixel
    how = (interpolation_mode, padding_mode, align_corners)
    axes = _axes(grid, input.shape, *how)
    corners = list(_corners(axes, input.shape, *how))
    doubt = _is_halfway(axes) if interpolation_mode == NEAREST else None
    steep = 1.0 if interpolation_mode == LINEAR else STEEP ** len(axes)
    near = product(*(_near(axis, size, *how) for axis, size in zip(axes, input.shape[2:], strict=True)))
    to_pixels = _to_pixels(grad_output, input, corners, near, steep * _errors(axes), doubt) if output_mask[0] else None
    if interpolation_mode == NEAREST:
        return [to_pixels, Exact(np.zeros(grid.shape)) if output_mask[1] else None]
    slopes = []
    for place, axis in enumerate(axes):
        total = sum(corner.slopes[place][:, None] * _read(input, corner) for corner in corners)
        value = (grad_output * total).sum(1) * axis.slope
        size = steep * (np.abs(grad_output) * _largest(input)).sum(1) * np.abs(axis.slope)
        rounding = size * (growth(4 * input.shape[1]) + ROUNDINGS + 4 * _errors(axes))
        unsure = np.zeros(value.shape, bool)
        if interpolation_mode == LINEAR:  # whose slope jumps from pixel to pixel, and at borders
            unsure = _jumps(axes, axis, input.shape[2 + place], padding_mode)
        slopes.append(Exact(value, np.where(unsure, np.inf, rounding)))
    slopes.reverse()
    made = Exact(np.stack([one.value for one in slopes], -1), np.stack([one.rounding for one in slopes], -1))
    return [to_pixels, made if output_mask[1] else None]


def _jumps(axes: list[_Axis], axis: _Axis, size: int, padding: int) -> Array:
    """Where rounding may put a place beyond a pixel, so that its slope is another."""
    if padding == ZEROS:
        return np.logical_or.reduce([one.near_a_jump for one in axes])
    edge = (axis.place <= axis.error * UNIT) | (axis.place >= size - 1 - axis.error * UNIT)
    return np.logical_or.reduce([one.near_a_jump & ~_still(one) for one in axes]) | (edge & ~_still(axis))


def _still(axis: _Axis) -> Array:
    """Where it is held at a border, whatever the grid says."""
    return axis.slope == 0


def _to_pixels(
    grad: Array,
    input: Array,
    corners: list[_Corner],
    near: Iterator[tuple[Array, ...]],
    errors: Array,
    doubt: Array | None,
) -> Exact:
    value, rounding = np.zeros(input.shape), np.zeros(input.shape)
    ones = [1] * (input.ndim - 2)
    rows, channels = np.arange(len(input)).reshape(-1, 1, *ones), np.arange(input.shape[1]).reshape(1, -1, *ones)
    count = np.zeros(input.shape)
    for corner in corners:
        at = (rows, channels, *(one[:, None] for one in corner.at))
        inside = corner.inside[:, None]
        np.add.at(value, at, grad * corner.weight[:, None] * inside)
        np.add.at(rounding, at, np.abs(grad * corner.weight[:, None]) * inside)
        np.add.at(count, at, np.broadcast_to(inside, grad.shape).astype(float))
    rounding *= growth(int(count.max(initial=1.0))) + ROUNDINGS
    off = np.abs(grad) * errors[:, None] if doubt is None else np.where(doubt[:, None], np.inf, 0.0) + 0 * grad
    for around in near:
        np.add.at(rounding, (rows, channels, *(one[:, None] for one in around)), off)
    return Exact(value, rounding)
