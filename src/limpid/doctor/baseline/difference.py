"""In which way one tensor differs from another, as far as their sketches tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from limpid.doctor.baseline.sketch import BINS, Array, Sketch, of_ones

FEW = 4
"""Numbers of which any two are nearly multiples of each other."""
PLACES = 3e-3
"""Share of the squares by which parts of an axis are told apart: what is kept of them has 11 bits."""
AXIS = ("row", "position", "column")


@dataclass(frozen=True)
class Difference:
    """Two tensors that were to be one."""

    then: Sketch
    now: Sketch
    near: float  # the relative distance that rounding explains

    @property
    def distance(self) -> float:
        return self.now.distance(self.then)

    @property
    def exists(self) -> bool:
        return self.distance > self.near

    @property
    def size(self) -> str:
        """By how much."""
        distance = self.distance
        return "" if math.isinf(distance) else f"relative {distance:.2g}"

    @property
    def factor(self) -> float | None:
        """c where now is c times then; None where it is not, or c is 1."""
        then, now = self.then, self.now
        if then.shape != now.shape or not then.norm or not now.norm or then.count < FEW or not then.finite:
            return None
        c = float(now.sums @ then.sums / (then.sums @ then.sums))
        left = float(np.linalg.norm(now.sums - c * then.sums)) / now.norm
        return c if c and left <= self._left and abs(c - 1) > self.near else None

    @property
    def _left(self) -> float:
        """What rounding leaves of a fit; a difference by a hundredth of that has been seen by then."""
        return max(self.near, 1e-6)

    @property
    def line(self) -> tuple[float, float] | None:
        """(a, b) where now is a times then plus b; None where it is not."""
        then, now = self.then, self.now
        if then.shape != now.shape or not then.norm or not now.norm or then.count < 4 * FEW or not then.finite:
            return None
        both = np.stack([then.sums, of_ones(then.count)], 1)
        (a, b), _, rank, _ = np.linalg.lstsq(both, now.sums, rcond=None)
        left = float(np.linalg.norm(now.sums - both @ (a, b))) / now.norm
        mean = (now.total - a * then.total) / now.count  # a second witness
        fits = rank == 2 and left <= self._left and abs(mean - b) <= 10 * self._left * max(abs(b), now.rms)
        return (float(a), float(b)) if fits and abs(b) > self._left * now.rms else None

    @property
    def rearranged(self) -> bool:
        """Whether both hold the same numbers, in other places."""
        then, now = self.then, self.now
        near = max(self.near, 1e-9)
        same = then.count == now.count == math.prod(then.shape) and then.zeros == now.zeros
        pairs = ((then.norm, now.norm), (then.total, now.total), (then.absolute, now.absolute))
        return same and now.norm > 0 and all(abs(a - b) <= near * now.absolute for a, b in pairs)

    @property
    def parts(self) -> str:
        """Which part of an axis alone differs, where one does."""
        then, now = self.then, self.now
        if then.shape != now.shape or len(then.profile) != len(now.profile) or not now.norm:
            return ""
        scale = (now.norm / then.norm) ** 2 if then.norm else 1.0
        for place, (a, b) in enumerate(zip(then.profile, now.profile, strict=True)):
            apart = np.abs(b * scale - a) > PLACES * np.maximum(a, 1 / len(a))
            if 0 < apart.sum() <= len(a) / 2 and len(a) > 2:
                axis = len(then.shape) - 1 if place == len(then.profile) - 1 and len(then.shape) > 1 else place
                return _named(np.flatnonzero(apart), axis, then.shape)
        return ""

    @property
    def way(self) -> str:
        """What the one is to the other, in words; empty where nothing simple is."""
        then, now = self.then, self.now
        if then.shape != now.shape:
            return f"shape {_shape(now.shape)}, then {_shape(then.shape)}"
        if now.count == then.count == 1 and now.finite and then.finite:
            return f"{now.total:.6g}, then {then.total:.6g}"
        if now.finite != then.finite:
            return "not finite" if then.finite else "finite, then not"
        if not now.norm or not then.norm:
            return "all zeros" if then.norm else "then all zeros"
        if self.factor is not None:
            return "the negative" if abs(self.factor + 1) <= self._left else f"{self.factor:.4g} times what it was"
        if self.line is not None:
            a, b = self.line
            return f"plus {b:.4g}" if abs(a - 1) <= 10 * self._left else f"{a:.4g} times what it was plus {b:.4g}"
        if self.rearranged:
            return "the same numbers in other places"
        if now.is_counted != then.is_counted:
            return f"{now.format}, then {then.format}"
        zeros = f"{now.zeros:.0%} zeros, then {then.zeros:.0%}" if abs(now.zeros - then.zeros) > 0.02 else ""
        return ", ".join(part for part in (f"in {self.parts} alone" if self.parts else "", zeros) if part)

    def __str__(self) -> str:
        larger = self.now.rms / self.then.rms if self.then.rms and self.now.rms else 0.0
        sizes = f"{larger:.3g} times as large" if larger and abs(larger - 1) > 0.1 and not self.way else ""
        return ", ".join(part for part in (self.size if not self._told_by_way else "", self.way, sizes) if part)

    @property
    def _told_by_way(self) -> bool:
        """Whether the words hold the size."""
        in_full = math.isinf(self.distance) or self.factor is not None or self.now.count == 1
        return in_full or not self.now.norm or not self.then.norm


def _named(parts: Array, axis: int, shape: tuple[int, ...]) -> str:
    length = shape[axis]
    word = "entry" if len(shape) == 1 else AXIS[2] if axis == len(shape) - 1 else AXIS[min(axis, 1)]
    several = {"entry": "entries"}.get(word, word + "s")
    bins = min(BINS, length)
    first, last = int(parts[0]) * length // bins, (int(parts[-1]) + 1) * length // bins - 1
    joined = bool((np.diff(parts) == 1).all())
    if first == last:
        return f"{word} {first}"
    if not joined and length <= BINS:
        return f"{several} {', '.join(map(str, parts[:4]))}" + (", …" if len(parts) > 4 else "")
    return f"{several} {first} to {last}" if joined else f"{len(parts)} of {bins} parts of the {several}"


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "one number"
