"""What each kernel adds to the gradients of its inputs, from the engine's own inputs and gradient of its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.maths.rounding import unit_roundoff
from limpid.tracing.ball import Ball
from limpid.tracing.finite import all_finite, dependent
from limpid.tracing.kernels import Kernel
from limpid.tracing.record import Place, Record
from limpid.tracing.segments import Segment
from limpid.tracing.sums import Sum


@dataclass(frozen=True)
class Gradients:
    """Every gradient of the engine: recorded, or 0 where none came to what trained parameters made."""

    record: Record
    cut: frozenset[str]  # of the path that trains

    def is_cut(self, path: Place, name: str) -> bool:
        return path == "fast" and name in self.cut

    def there(self, path: Place, name: str) -> bool:
        return f"{path}/grad({name})" in self.record.names or self.is_cut(path, name)

    def format(self, path: Place, name: str) -> np.dtype[Any]:
        return self.record.format(f"{path}/{name}" if self.is_cut(path, name) else f"{path}/grad({name})")

    def stored(self, path: Place, name: str) -> Array:
        """In the engine's format."""
        if self.is_cut(path, name):
            return np.zeros_like(self.record.stored(f"{path}/{name}"))
        return self.record.stored(f"{path}/grad({name})")

    def exact(self, path: Place, name: str) -> Array:
        """In float64."""
        if self.is_cut(path, name):
            return np.zeros(self.record.shape(f"{path}/{name}"))
        return self.record.exact(f"{path}/grad({name})")


@dataclass(frozen=True)
class Part:
    """What one kernel adds to the gradient of one of its inputs, or which of its entries are in doubt."""

    path: Place
    name: str
    ball: Ball | None
    dtype: Any  # in which the kernel hands it back
    unknown: Array | None = None
    why: Sequence[str] = ()


def add_up(parts: Sequence[Part], gradients: Gradients, sums: dict[tuple[Place, str], Sum]) -> None:
    """Add what one kernel gave to the sums of its inputs."""
    for part in parts:
        at = (part.path, part.name)
        if part.ball is not None:
            learned = f"before/{part.name}" in gradients.record.names
            sums.setdefault(at, Sum(gradients.format(*at), learned)).add(part.ball, part.dtype)
        elif at in sums:
            sums[at].doubt(part.unknown, list(part.why))


@dataclass(frozen=True)
class Backward:
    """The backward pass of one kernel: what it adds to the gradients of its inputs."""

    record: Record
    piece: Segment
    kernel: Kernel
    formats: tuple[Any, ...]  # in which it hands back the gradient of each input
    gradients: Gradients
    parts: list[Part] = field(default_factory=list)

    def learned(self, name: str) -> bool:
        return f"before/{name}" in self.record.names

    def in_parts(self, inputs: list[Array], y_bar: Array) -> None:
        """One micro-batch after the other, as the engine does: each rounds its own part of a parameter's gradient."""
        names, whole = self.piece.inputs, self.record.micro_batches()
        if not self.record.has_rows(self.piece.name) and y_bar.ndim:
            return self._of_positions(y_bar)
        by_name: dict[str, list[Ball]] = {}
        for part in whole:
            own = [array[part] if self.record.has_rows(name) else array
                   for name, array in zip(names, inputs, strict=True)]  # fmt: skip
            own_bar = y_bar[part] if self.record.has_rows(self.piece.name) else y_bar
            balls = self.kernel.backward(own_bar, self.kernel.forward(own)[1])
            for name, ball, dtype in zip(names, balls, self.formats, strict=False):
                if ball is None:
                    continue
                if self.learned(name):
                    self._add(name, ball, dtype)
                else:
                    by_name.setdefault(name, []).append(ball)
        for name, balls_of in by_name.items():
            formed = [ball.formed for ball in balls_of if ball.formed is not None]
            joined = Ball(
                np.concatenate([ball.value for ball in balls_of]), np.concatenate([ball.reach for ball in balls_of]),
                np.concatenate(formed) if formed else None,
            )  # fmt: skip
            self._add(name, joined, self.formats[names.index(name)])
        self._doubt(inputs, y_bar)
        return None

    def _of_positions(self, y_bar: Array) -> None:
        """Vectors of positions are the same for every row: of their gradient only the sum of the parts is recorded.

        Engine and record add the parts up in float32, each with n - 1 roundings of at most Σ |parts|.
        """
        parts = len(self.record.micro_batches())
        rows = np.abs(self.record.exact(f"{self.piece.path}/grad(embed.sum)")).sum(0)
        unit = unit_roundoff(self.record.parameters_format)
        (bar,) = self.kernel.backward(
            y_bar, self.kernel.forward([self.record.exact(f"before/{self.piece.inputs[0]}")])[1]
        )
        assert bar is not None
        reach = np.zeros(bar.value.shape)
        reach[: len(rows)] = 2 * (parts - 1) * unit * rows
        self._add(self.piece.inputs[0], Ball(bar.value, bar.reach + reach), self.formats[0])

    def add(self, inputs: list[Array], y_bar: Array, saved: Any) -> None:
        """All rows at once."""
        balls = self.kernel.backward(y_bar, saved)
        for name, ball, dtype in zip(self.piece.inputs, balls, self.formats, strict=False):
            if ball is not None:
                self._add(name, ball, dtype)
        self._doubt(inputs, y_bar)

    def _add(self, name: str, ball: Ball, dtype: Any) -> None:
        if self.gradients.there(self.piece.path, name):
            self.parts.append(Part(self.piece.path, name, ball, dtype))

    def _doubt(self, inputs: list[Array], y_bar: Array) -> None:
        """Which entries follow from numbers that are not finite."""

        def run(arrays: Sequence[Array]) -> list[Array | None]:
            balls = self.kernel.backward(arrays[-1], self.kernel.forward(arrays[:-1])[1])
            return [None if ball is None else ball.value for ball in balls]

        unknown = dependent(run, [*inputs, y_bar])
        if unknown is None:
            return
        why = names_not_finite((*self.piece.inputs, f"grad({self.piece.name})"), [*inputs, y_bar])
        for name, entries in zip(self.piece.inputs, unknown, strict=False):
            self.parts.append(Part(self.piece.path, name, None, None, entries, why))


def names_not_finite(names: Sequence[str], arrays: Sequence[Array]) -> list[str]:
    return [name for name, array in zip(names, arrays, strict=True) if not all_finite(array)]
