"""One kernel of the engine: its result and its gradients from the engine's own inputs, each with its reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from limpid.maths.attention import SavedScores, Scores
from limpid.maths.operation import Array, Operation
from limpid.maths.rounding import unit_roundoff
from limpid.trace.ball import Ball, underflow


@dataclass(frozen=True)
class Formats:
    """In which formats a kernel works."""

    summed: Any  # in which products and sums are formed
    compute: Any  # of what goes into matrix products
    result: Any  # of its result
    gradients: tuple[Any, ...]  # in which it hands back the gradient of each input

    @property
    def unit(self) -> float:
        """Unit round-off of sums, and of the reference's own float64."""
        return unit_roundoff(self.summed) + unit_roundoff(np.float64)


class Kernel(Protocol):
    """What a kernel computes. Its last rounding, of a result to its tensor, is left to who compares."""

    @property
    def arithmetic(self) -> str:
        """In one line: from which arithmetic its limits follow."""

    def forward(self, inputs: Sequence[Array]) -> tuple[Ball, Any]:
        """The result, and what backward needs."""

    def backward(self, y_bar: Array, saved: Any) -> Sequence[Ball | None]:
        """What is added to the gradient of each input."""


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
        reach = self.formats.unit * self.operation.rounding(*inputs)
        if self.in_parts:
            parts = self.operation.storage(value, *inputs) - np.abs(value)
            reach = reach + unit_roundoff(self.formats.result) * np.maximum(parts, 0.0)
            reach = reach + underflow(self.formats.result)
        return Ball(value, reach), saved

    def backward(self, y_bar: Array, saved: Any) -> list[Ball | None]:
        bars = self.operation.backward(y_bar, saved)
        roundings = self.operation.backward_rounding(y_bar, saved)
        storages = self.operation.backward_storage(bars, y_bar, saved)
        subnormal = self._subnormal(y_bar, saved)
        balls: list[Ball | None] = []
        lists = (bars, roundings, storages, self.formats.gradients, subnormal)
        for bar, rounding, storage, dtype, lost in zip(*lists, strict=False):
            if bar is None or rounding is None or storage is None:
                balls.append(None)
                continue
            reach = self.formats.unit * rounding
            if self.in_parts:
                reach = reach + unit_roundoff(dtype) * np.maximum(storage - np.abs(bar), 0.0) + lost
            balls.append(Ball(bar, reach))
        return balls

    def _subnormal(self, y_bar: Array, saved: Any) -> Sequence[Array | float]:
        """What intermediate results lose near 0: the scaled gradient of scores is stored before it is multiplied."""
        lost = [underflow(dtype) for dtype in self.formats.gradients]
        if not (self.in_parts and isinstance(self.operation, Scores)):
            return lost
        sizes = SavedScores(np.abs(saved.query), np.abs(saved.key), saved.positions)
        each = underflow(self.formats.compute) / self.operation.scale
        bars = self.operation.backward(np.full(y_bar.shape, each), sizes)
        return [bar + one for bar, one in zip(bars, lost, strict=True)]
