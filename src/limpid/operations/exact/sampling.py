"""Pictures read at the places of a grid, between their pixels or at the nearest one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.exact import Exact, arithmetic, growth

BILINEAR, NEAREST = 0, 1
ZEROS, BORDER, REFLECTION = 0, 1, 2
ROUNDINGS = 16.0
"""Of a place on the way from the grid to pixels, in units of u of the numbers that it passes."""
UNIT = 2.0**-24
"""u of float32, in which places are computed whatever the format."""


class _Axis(NamedTuple):
    """Places along one axis of the pictures."""

    place: Array  # (N, H, W), pixels
    slope: Array  # of it by the grid's number
    error: Array  # that it may be off by, in units of u

    @property
    def near_a_jump(self) -> Array:
        """Where rounding may put it beyond a pixel."""
        return np.abs(self.place - np.round(self.place)) <= self.error * UNIT


def _axis(grid: Array, size: int, padding: int, align: bool) -> _Axis:
    place = (grid + 1) / 2 * (size - 1) if align else ((grid + 1) * size - 1) / 2
    slope = np.full(grid.shape, (size - 1 if align else size) / 2)
    error = ROUNDINGS * ((np.abs(grid) + 1) * size + 1)
    if padding == REFLECTION:
        low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
        away = np.abs(place - low)
        slope = slope * np.where(place < low, -1.0, 1.0)
        turns = np.floor(away / span) if span else np.zeros_like(away)
        rest = away - turns * span if span else np.zeros_like(away)
        slope = slope * np.where(turns % 2 == 1, -1.0, 1.0)
        place = low + np.where(turns % 2 == 1, span - rest, rest)
    if padding != ZEROS:
        slope = np.where((place <= 0) | (place >= size - 1), 0.0, slope)
        place = np.clip(place, 0, size - 1)
    return _Axis(place, slope, error)


class _Corner(NamedTuple):
    """One of the four pixels around every place."""

    y: Array
    x: Array
    inside: Array
    weight: Array
    by_y: Array  # the weight's slope along each axis
    by_x: Array


def _corners(y: _Axis, x: _Axis, shape: tuple[int, ...], mode: int) -> Iterator[_Corner]:
    height, width = shape[-2:]
    if mode == NEAREST:
        whole = np.rint(y.place).astype(np.int64), np.rint(x.place).astype(np.int64)
        one, none = np.ones(y.place.shape), np.zeros(y.place.shape)
        yield _corner(*whole, height, width, one, none, none)
        return
    y0, x0 = np.floor(y.place).astype(np.int64), np.floor(x.place).astype(np.int64)
    ty, tx = y.place - y0, x.place - x0
    for down in (0, 1):
        for right in (0, 1):
            wy, wx = (ty if down else 1 - ty), (tx if right else 1 - tx)
            by_y, by_x = (2 * down - 1) * wx, (2 * right - 1) * wy
            yield _corner(y0 + down, x0 + right, height, width, wy * wx, by_y, by_x)


def _corner(y: Array, x: Array, height: int, width: int, weight: Array, by_y: Array, by_x: Array) -> _Corner:
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return _Corner(np.clip(y, 0, height - 1), np.clip(x, 0, width - 1), inside, weight, by_y, by_x)


def _read(pictures: Array, corner: _Corner) -> Array:
    """(N, C, H, W) of a corner's pixels, 0 outside."""
    rows = np.arange(len(pictures))[:, None, None]
    return np.moveaxis(pictures[rows, :, corner.y, corner.x], -1, 1) * corner.inside[:, None]


def _axes(grid: Array, shape: tuple[int, ...], padding: int, align: bool) -> tuple[_Axis, _Axis]:
    return _axis(grid[..., 1], shape[-2], padding, align), _axis(grid[..., 0], shape[-1], padding, align)


@arithmetic("grid_sampler_2d")
def grid_sampler(
    input: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    formats: dict[str, Any],
) -> Exact | None:
    """A weighted mean of the four pixels around each place, or the nearest."""
    if interpolation_mode not in (BILINEAR, NEAREST) or formats["grid"].itemsize < 4:
        return None  # by cubics; or with places of 16 bits, which know no pixel
    y, x = _axes(grid, input.shape, padding_mode, align_corners)
    value, size = 0.0, 0.0
    for corner in _corners(y, x, input.shape, interpolation_mode):
        pixels = _read(input, corner)
        value, size = value + corner.weight[:, None] * pixels, size + corner.weight[:, None] * np.abs(pixels)
    if interpolation_mode == NEAREST:
        return Exact(np.asarray(value), np.where(_is_halfway(y) | _is_halfway(x), np.inf, 0.0)[:, None] + 0 * size)
    largest = np.abs(input).max((-2, -1), initial=0.0)[:, :, None, None]
    return Exact(np.asarray(value), ROUNDINGS * size + (y.error + x.error)[:, None] * largest)


def _is_halfway(axis: _Axis) -> Array:
    return np.abs(axis.place - np.floor(axis.place) - 0.5) <= axis.error * UNIT


@arithmetic("grid_sampler_2d_backward")
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
    if interpolation_mode not in (BILINEAR, NEAREST) or formats["grid"].itemsize < 4:
        return None  # by cubics; or with places of 16 bits, which know no pixel
    y, x = _axes(grid, input.shape, padding_mode, align_corners)
    corners = list(_corners(y, x, input.shape, interpolation_mode))
    largest = np.abs(input).max((-2, -1), initial=0.0)[:, :, None, None]
    doubt = (_is_halfway(y) | _is_halfway(x)) if interpolation_mode == NEAREST else None
    to_pixels = _to_pixels(grad_output, input, corners, y, x, doubt) if output_mask[0] else None
    if interpolation_mode == NEAREST:
        return [to_pixels, Exact(np.zeros(grid.shape)) if output_mask[1] else None]
    slopes = []
    for axis, along in ((x, "by_x"), (y, "by_y")):
        total = sum(getattr(corner, along)[:, None] * _read(input, corner) for corner in corners)
        value = (grad_output * total).sum(1) * axis.slope
        size = (np.abs(grad_output) * largest).sum(1) * np.abs(axis.slope)
        rounding = size * (growth(4 * input.shape[1]) + ROUNDINGS + 4 * (y.error + x.error))
        edge = (axis.place <= axis.error * UNIT) | (axis.place >= input.shape[-1 if axis is x else -2] - 1
                                                    - axis.error * UNIT)  # fmt: skip
        unsure = y.near_a_jump | x.near_a_jump if padding_mode == ZEROS else (y.near_a_jump & ~_still(y)) | (
            x.near_a_jump & ~_still(x)) | (edge & ~_still(axis))  # fmt: skip
        slopes.append(Exact(value, np.where(unsure, np.inf, rounding)))
    made = Exact(np.stack([one.value for one in slopes], -1), np.stack([one.rounding for one in slopes], -1))
    return [to_pixels, made if output_mask[1] else None]


def _still(axis: _Axis) -> Array:
    """Where it is held at a border, whatever the grid says."""
    return axis.slope == 0


def _to_pixels(grad: Array, input: Array, corners: list[_Corner], y: _Axis, x: _Axis, doubt: Array | None) -> Exact:
    value, rounding = np.zeros(input.shape), np.zeros(input.shape)
    rows, channels = np.arange(len(input))[:, None, None, None], np.arange(input.shape[1])[None, :, None, None]
    count = np.zeros(input.shape)
    for corner in corners:
        at = (rows, channels, corner.y[:, None], corner.x[:, None])
        inside = corner.inside[:, None]
        np.add.at(value, at, grad * corner.weight[:, None] * inside)
        np.add.at(rounding, at, np.abs(grad) * corner.weight[:, None] * inside)
        np.add.at(count, at, np.broadcast_to(inside, grad.shape).astype(float))
    rounding *= growth(int(count.max(initial=1.0))) + ROUNDINGS
    off = (
        np.abs(grad) * (y.error + x.error)[:, None]
        if doubt is None
        else np.where(doubt[:, None], np.inf, 0.0) + 0 * grad
    )
    height, width = input.shape[-2:]
    y0, x0 = np.floor(y.place).astype(np.int64), np.floor(x.place).astype(np.int64)
    for down in (-1, 0, 1, 2):
        for right in (-1, 0, 1, 2):
            at = (
                rows,
                channels,
                np.clip(y0 + down, 0, height - 1)[:, None],
                np.clip(x0 + right, 0, width - 1)[:, None],
            )
            np.add.at(rounding, at, off)
    return Exact(value, rounding)
