"""A tensor as a few numbers, from which the distance of two tensors can be told without having both.

Count sketch: each of n numbers is added to one of k sums with a sign, both drawn once and for all by its place. So
E‖S x‖² = ‖x‖², with a standard deviation of at most √(2/k) ‖x‖², and S x - S y = S (x - y): two sketches tell the
distance of their tensors, with k = 8 within a factor of 1.25 in two of three cases, and whether one is a multiple of
the other to rounding. Source: Charikar, Chen & Farach-Colton 2002; Thorup & Zhang 2012, for the variance.
"""

from __future__ import annotations

import base64
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

from limpid.doctor.weights import local

Array = np.ndarray
SUMS = 8
"""Sums of a sketch, k."""
ROOM = 2**17
"""Numbers of a tensor that are read; of larger ones rows that are spread evenly."""
PACKED = 2.0**-21
"""The relative distance that packing makes, at most."""
BINS = 16
"""Parts of an axis whose squares are summed."""
AXES = 3
"""Axes that have such parts: the first two and the last."""


@dataclass(frozen=True)
class Sketch:
    """What is kept of a tensor, in float64."""

    shape: tuple[int, ...]
    format: str
    count: int  # numbers read
    norm: float
    total: float
    absolute: float  # the sum of absolute values
    zeros: float  # share
    finite: bool
    sums: Array  # (k,)
    profile: tuple[Array, ...] = ()  # squares by part of an axis, over all of them: (part,) each

    @property
    def rms(self) -> float:
        return self.norm / math.sqrt(self.count) if self.count else 0.0

    @property
    def is_counted(self) -> bool:
        """Whether its numbers are whole."""
        return self.format.startswith(("int", "uint", "bool"))

    @property
    def key(self) -> str:
        """Of what it holds: alike where the numbers are, as they were packed."""
        return " ".join(f"{x:.5g}" for x in np.array([self.norm, self.total, *self.sums], "<f4"))

    def distance(self, other: Sketch) -> float:
        """‖x - y‖, as estimated, over the larger norm; infinite where they have other shapes."""
        if self.shape != other.shape or self.finite != other.finite:
            return math.inf
        largest = max(self.norm, other.norm)
        return float(np.linalg.norm(self.sums - other.sums)) / largest if largest else 0.0

    def packed(self, profile: bool = True) -> list[Any]:
        """As JSON holds it, to 24 bits."""
        numbers = np.array([self.count, self.norm, self.total, self.absolute, self.zeros, *self.sums], "<f4")
        parts = [base64.b64encode(part.astype("<f2").tobytes()).decode() for part in self.profile if profile]
        return [list(self.shape), self.format, self.finite, base64.b64encode(numbers.tobytes()).decode(), *parts]

    @classmethod
    def unpacked(cls, held: list[Any]) -> Sketch:
        """Raises ValueError or TypeError for what no sketch was packed to."""
        shape, form, finite, numbers, *parts = held
        count, norm, total, absolute, zeros, *sums = np.frombuffer(base64.b64decode(numbers), "<f4").tolist()
        if len(sums) != SUMS:
            raise ValueError("no sketch")
        profile = tuple(np.frombuffer(base64.b64decode(part), "<f2").astype(float) for part in parts)
        whole = tuple(int(length) for length in shape)
        return cls(whole, str(form), int(count), norm, total, absolute, zeros, bool(finite), np.array(sums), profile)


def sketch(tensor: Tensor) -> Sketch | None:
    """Of a strided tensor of numbers; None of any other."""
    known = read(tensor)
    return None if known is None else made(*known, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def made(values: Array, rows: Array, shape: tuple[int, ...], form: str) -> Sketch:
    """From the numbers (row, column) that were read of a tensor."""
    finite = bool(np.isfinite(values).all())
    values = values if finite else np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    flat = values.reshape(-1)
    squares = (values * values).sum(1)
    norm = math.sqrt(float(squares.sum()))
    return Sketch(
        shape,
        form,
        flat.size,
        norm,
        float(flat.sum()),
        float(np.abs(flat).sum()),
        float((flat == 0).mean()) if flat.size else 0.0,
        finite,
        project(flat),
        _profile(shape, values, squares, rows, norm) if norm else (),
    )


def read(tensor: Tensor) -> tuple[Array, Array] | None:
    """Up to `ROOM` numbers of a tensor as (row, column) in float64, and which rows of all; a vector is a column."""
    if is_lazy(tensor):
        return None
    t = local(tensor.detach())
    if t.layout != torch.strided or t.is_meta or t.is_quantized or t.is_nested or not t.numel():
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction(), _disable_current_modes():
        t = torch.view_as_real(t) if t.is_complex() else t
        width = t.shape[-1] if t.ndim > 1 else 1
        leading = tuple(t.shape[:-1]) if t.ndim > 1 else (t.numel(),)
        rows = np.arange(0, math.prod(leading), step_between(leading, width))
        if len(rows) < math.prod(leading):
            t = t[tuple(torch.as_tensor(axis, device=t.device) for axis in np.unravel_index(rows, leading))]
        values = t.to("cpu", torch.float64).numpy().reshape(len(rows), width)
    return values[:, : ROOM * 8], rows


def step_between(leading: tuple[int, ...], width: int) -> int:
    """How far apart the rows are that are read: 1 where all are, else without a common factor with any axis."""
    rows = math.prod(leading)
    step = max(1, -(-rows * width // ROOM))
    while step > 1 and any(math.gcd(step, length) > 1 for length in leading) and step < rows:
        step += 1
    return step


def project(flat: Array) -> Array:
    """The k sums of numbers, (n,) → (k,)."""
    places = _places()
    sums = np.zeros(2 * SUMS)
    for start in range(0, flat.size, len(places)):
        part = flat[start : start + len(places)]
        each = np.bincount(places[: part.size], weights=part, minlength=2 * SUMS)
        sums += np.roll(each, 2 * (start // len(places)))
    signed: Array = sums[0::2] - sums[1::2]
    return signed


@functools.lru_cache(maxsize=64)
def of_ones(count: int) -> Array:
    """The sketch of as many ones."""
    return project(np.ones(count))


@functools.cache
def _places() -> Array:
    """Which of 2 k sums each place is added to, the same everywhere: splitmix64 of its number."""
    with np.errstate(over="ignore"):
        z = np.arange(1, ROOM + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z % np.uint64(2 * SUMS)).astype(np.int64)


def _profile(shape: tuple[int, ...], values: Array, squares: Array, rows: Array, norm: float) -> tuple[Array, ...]:
    """Shares of the squares in each part of the first two axes and of the last."""
    if not shape or values.shape[1] != (shape[-1] if len(shape) > 1 else 1):
        return ()
    leading = shape[:-1] if len(shape) > 1 else shape
    where = np.unravel_index(rows, leading)
    shares = [
        np.bincount(part_of(where[axis], leading[axis]), weights=squares, minlength=min(BINS, leading[axis]))
        for axis in range(min(len(leading), AXES - 1))
    ]
    if len(shape) > 1:
        columns = (values * values).sum(0)
        shares.append(np.bincount(part_of(np.arange(len(columns)), len(columns)), weights=columns))
    return tuple(share / norm**2 for share in shares)


def part_of(index: Array, length: int) -> Array:
    """Which part of an axis a place belongs to."""
    return index if length <= BINS else index * BINS // length
