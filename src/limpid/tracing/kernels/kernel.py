"""One kernel of the engine: its result and its gradients from the engine's own inputs, each with its reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from limpid.maths.attention import Mix, Scores, by_position
from limpid.maths.linear import Linear
from limpid.maths.operation import Array, Operation
from limpid.maths.rounding import smallest_normal, unit_roundoff
from limpid.tracing.ball import Ball, product, underflow
from limpid.tracing.parts import by_parts


@dataclass(frozen=True)
class Formats:
    """In which formats a kernel works."""

    summed: Any  # in which products and sums are formed
    compute: Any  # of what goes into matrix products
    result: Any  # of its result
    gradients: tuple[Any, ...]  # in which it hands back the gradient of each input
    entering: float = 0.0  # share of each entry that a matrix product may lose before it multiplies, as TF32 does

    @property
    def unit(self) -> float:
        """Unit round-off of sums, and of the reference's own float64."""
        return unit_roundoff(self.summed) + unit_roundoff(np.float64)

    def product(self, a: Ball, b: Ball) -> Ball:
        """a @ b in these formats."""
        return product(a, b, self.summed, self.entering)


class Kernel(Protocol):
    """What a kernel computes. Its last rounding, of a result to its tensor, is left to who compares."""

    @property
    def arithmetic(self) -> str:
        """In one line: from which arithmetic its limits follow."""

    def forward(self, inputs: Sequence[Array]) -> tuple[Ball, Any]:
        """The result, and what backward needs."""

    def backward(self, y_bar: Array, saved: Any) -> Sequence[Ball | None]:
        """What is added to the gradient of each input."""

    def exact(self, ball: Ball, saved: Any) -> Array | None:
        """The mathematics of the same inputs, where nothing is rounded; None where `forward` did not form it."""


@dataclass(frozen=True)
class OneOperation:
    """A kernel that does one operation.

    in_parts   whether it may store intermediate results: then each is rounded wherever the operation says it may be
    """

    operation: Operation
    formats: Formats
    in_parts: bool = True
    arithmetic = "sums of k terms in float32: k u Σ|terms|; then one rounding to the tensor's format, to nearest"

    def forward(self, inputs: Sequence[Array]) -> tuple[Ball, Any]:
        value, saved = self.operation.forward(*inputs)
        storage = self.operation.storage(value, *inputs) if self.in_parts else None
        rounding = self.operation.rounding(*inputs)
        reach = self._widened(value, rounding, self._flushed(inputs), storage, self.formats.result)
        if self._loses:
            reach += self._lost(self.operation.forward(*map(np.abs, inputs))[0])
        return Ball(value, self._overflown(reach, saved)), saved

    def backward(self, y_bar: Array, saved: Any) -> list[Ball | None]:
        bars = self.operation.backward(y_bar, saved)
        roundings = self.operation.backward_rounding(y_bar, saved)
        storages = self.operation.backward_storage(bars, y_bar, saved)
        inside, flushed = self._lost_inside(saved), self._flushed((y_bar, *_arrays(saved)))
        sizes = self.operation.backward(np.abs(y_bar), _sizes(saved)) if self._loses else [None] * len(bars)
        balls: list[Ball | None] = []
        lists = (bars, roundings, storages, self.formats.gradients, inside, sizes)
        for bar, rounding, storage, dtype, lost, size in zip(*lists, strict=False):
            if bar is None or rounding is None or storage is None:
                balls.append(None)
                continue
            reach = self._widened(bar, rounding, flushed, storage if self.in_parts else None, dtype)
            if size is not None:
                reach += self._lost(size)
            if self.in_parts and np.any(lost):
                reach += lost
            formed = self.operation.formed_backward(y_bar) if bar.shape == y_bar.shape else None
            balls.append(Ball(bar, self._overflown(reach, saved), formed))
        return balls

    def exact(self, ball: Ball, saved: Any) -> Array:
        return ball.value

    @property
    def _loses(self) -> bool:
        """Whether a part of what enters is lost before it is multiplied."""
        return self.formats.entering > 0 and isinstance(self.operation, Linear | Scores | Mix)

    def _lost(self, size: Array) -> Array:
        """What a product loses so, Σ|terms| being `size`."""
        return self.formats.entering * (2 + self.formats.entering) * size

    def _overflown(self, reach: Array, saved: Any) -> Array:
        """Without a bound where a number that is formed on the way exceeds the format in which it is."""
        over = np.asarray(self.operation.on_the_way(saved)) > float(ml_dtypes.finfo(self.formats.summed).max)
        if not over.any():
            return reach
        return np.where(over, np.inf, reach) if over.ndim == reach.ndim else np.full(reach.shape, np.inf)

    def _widened(self, value: Array, rounding: Array, flushed: float, storage: Array | None, dtype: Any) -> Array:
        """Roundings of sums, of intermediate results to their format, and what is lost near 0."""
        unit, lost, of_sums = unit_roundoff(dtype), underflow(dtype), self.formats.unit
        if storage is None:
            return np.asarray(of_sums * rounding + flushed)

        def entries(value: Array, rounding: Array, storage: Array) -> tuple[Array]:
            more = np.maximum(storage - np.abs(value), 0.0)
            return (of_sums * rounding + (unit * more + (flushed + lost)),)

        return by_parts(entries, value, rounding, storage)[0]

    def _lost_inside(self, saved: Any) -> Sequence[Array | float]:
        """What attention loses near 0 before a last rounding, for each gradient.

        The scaled gradient of scores is stored before it meets k and q, and so is what each query head passes to a key
        or value that it shares.
        """
        formats = self.formats.gradients
        if not (self.in_parts and isinstance(self.operation, Scores | Mix)):
            return [0.0] * len(formats)
        sharing = (saved.query if isinstance(self.operation, Scores) else saved.weights).shape[2]
        if isinstance(self.operation, Mix):
            return [0.0, sharing // saved.shape[2] * underflow(formats[1])]
        each, (query, key, positions) = underflow(self.formats.compute), saved
        lost = (each * np.abs(other).sum(2, keepdims=True) for other in (key, query))
        wide = [np.broadcast_to(bar, like.shape) for bar, like in zip(lost, (query, key), strict=True)]
        shared = sharing // positions * underflow(formats[1])
        return [by_position(wide[0], positions), by_position(wide[1], key.shape[2]) + shared]

    def _flushed(self, arrays: Sequence[Array]) -> float:
        """What a matrix product loses near 0: entries and terms below the smallest normal number may be taken as 0."""
        if not isinstance(self.operation, Linear | Scores | Mix):
            return 0.0
        terms = max(max(array.shape) for array in arrays)
        return terms * smallest_normal(self.formats.summed) * (1 + sum(_largest(array) for array in arrays))


def _arrays(saved: Any) -> list[Array]:
    """What of it are arrays of numbers."""
    parts = saved if isinstance(saved, tuple) else (saved,)
    return [part for part in parts if isinstance(part, np.ndarray) and part.ndim]


def _sizes(saved: Any) -> Any:
    """The absolute values of what a product saved."""
    return type(saved)(*(np.abs(part) if isinstance(part, np.ndarray) else part for part in saved))


def _largest(array: Array) -> float:
    """|x| of the largest finite entry."""
    largest = max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))
    if np.isfinite(largest):
        return largest
    return float(np.abs(array).max(where=np.isfinite(array), initial=0.0))
