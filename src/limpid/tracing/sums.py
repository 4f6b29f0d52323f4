"""The gradient of one array while its contributions come in, one per kernel that used it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.maths.rounding import unit_roundoff
from limpid.tracing.ball import Ball, stored


@dataclass
class Partial:
    """Contributions in one format, added up in it in an order that is not known."""

    dtype: Any
    total: Ball | None = None
    magnitude: Array | float = 0.0
    count: int = 0

    def add(self, ball: Ball) -> None:
        """The first one alone stays as exact as it came: its rounding is left to who compares."""
        if self.count == 1 and self.total is not None:
            self.total = stored(self.total, self.dtype)
            self.magnitude = np.abs(self.total.value)
        if self.total is None:
            self.total = ball
        else:
            ball = stored(ball, self.dtype)
            self.total = Ball(self.total.value + ball.value, self.total.reach + ball.reach)
            self.magnitude = self.magnitude + np.abs(ball.value)
        self.count += 1

    def sum(self) -> Ball | None:
        """All of them, up to the last rounding: of n - 1 additions, n - 2 leave a rounding inside."""
        if self.total is None or self.count < 3:
            return self.total
        inside = (self.count - 2) * unit_roundoff(self.dtype) * np.asarray(self.magnitude)
        return Ball(self.total.value, self.total.reach + inside)


@dataclass
class Sum:
    """All contributions. Those in a narrower format than the gradient's are added up first, and rounded to it.

    A parameter's are not: each is cast to the parameter's format before it is added.
    """

    dtype: Any  # of the gradient
    learned: bool
    narrow: Partial | None = None
    own: Partial = field(init=False)
    unknown: Array | None = None  # entries that follow from numbers that are not finite
    why: list[str] = field(default_factory=list)  # which
    formats: list[Any] = field(default_factory=list)
    formed: Array | None = None  # magnitudes on the way, where a contribution tells

    def __post_init__(self) -> None:
        self.own = Partial(self.dtype)

    def add(self, ball: Ball, dtype: Any) -> None:
        self.formats.append(dtype)
        if ball.formed is not None:
            self.formed = ball.formed if self.formed is None else np.maximum(self.formed, ball.formed)
        if dtype == self.dtype:
            self.own.add(ball)
        elif self.learned:
            self.own.add(stored(ball, dtype))
        else:
            self.narrow = self.narrow or Partial(dtype)
            self.narrow.add(ball)

    def doubt(self, unknown: Array | None, why: list[str]) -> None:
        """Note which entries of a contribution follow from numbers that are not finite."""
        if unknown is not None and unknown.any():
            self.unknown = unknown if self.unknown is None else self.unknown | unknown
            self.why += [name for name in why if name not in self.why]

    def total(self) -> Ball:
        if self.narrow is not None and self.narrow.total is not None:
            part = self.narrow.sum()
            assert part is not None
            self.own.add(stored(part, self.narrow.dtype))
            self.narrow = None
        total = self.own.sum()
        assert total is not None
        return total
