"""One operation that PyTorch was asked for, where it was asked, and what came of doing it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple

from limpid.maths.operation import Array

if TYPE_CHECKING:
    from limpid.operations.unrounded import Enters


Cause = Literal["wrong", "badly conditioned", "low precision", ""]
ILL = 10.0
"""A condition that loses a digit: its result is wrong by ten times as much of itself as what came in."""


class Check(StrEnum):
    """What was held against what."""

    REDONE = "redone"  # in float64, within its bound
    MOVED = "moved"  # to the bit
    DRAWN = "drawn"  # random numbers, or memory that holds nothing yet: taken from the record
    UNCHECKED = "unchecked"


class Difference(NamedTuple):
    """The entry of a result that is furthest off, by its bound."""

    share: float  # of the bound; more than 1 is more than rounding
    output: int
    place: tuple[int, ...]  # of a complex number the last index is 0 for its real part, 1 for the other
    engine: float
    expected: float
    bound: float


@dataclass
class Call:
    """An operation in the order of the step."""

    number: int
    operation: str  # as ATen names it: aten.addmm.default
    phase: str  # forward, backward or update
    module: str  # its path in the model; of a backward call, that of the forward call it belongs to
    source: str  # file:line that asked for it
    shapes: list[tuple[int, ...]]
    dtype: str  # of its first result
    operations: int  # additions and multiplications, of a product; else entries made
    check: Check = Check.UNCHECKED
    why: str = ""  # where it was not checked
    worst: Difference | None = None
    condition: float = 0.0  # forward: by how much it amplifies relative errors of what came in; 0 where not told
    ended: str = ""  # nan or inf, where it made some of numbers that had none
    error: float = 0.0  # what its rounding adds to the number that the backward pass began at, to first order
    errors: Sequence[Array | None] = field(default=(), repr=False)  # results less exact ones, while recording
    inherited_error: float = 0.0  # the same, of what it did to values that have no gradient of their own
    beyond: float = 0.0  # what it adds to that beyond the first order: curvature, kinks, what was chosen otherwise
    enters: Enters | None = field(default=None, repr=False)  # what comes in with such, and that, while recording

    @property
    def is_wrong(self) -> bool:
        return self.worst is not None and not self.worst.share <= 1

    @property
    def cause(self) -> Cause:
        """Why its result is not that of exact arithmetic on exact inputs."""
        if self.is_wrong:
            return "wrong"
        if self.condition >= ILL:
            return "badly conditioned"
        return "low precision" if self.error or self.inherited_error else ""

    def __str__(self) -> str:
        where = " ".join(part for part in (self.phase, self.module or "(no module)", self.source) if part)
        said = f"{self.number} {self.operation} {self.dtype}{list(self.shapes[0]) if self.shapes else ''} in {where}"
        if self.check is Check.UNCHECKED:
            return f"{said}: not checked, {self.why}"
        if self.worst is None:
            return f"{said}: {self.check}"
        worst = self.worst
        return (
            f"{said}: {worst.engine:.9g} at {list(worst.place)}, {worst.expected:.9g} expected, "
            f"{worst.share:.3g} of the bound"
        )
