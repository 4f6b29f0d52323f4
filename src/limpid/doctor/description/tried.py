"""What passes of the doctor's own show of a model: before the first update, and when the page is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from limpid.doctor.description.chance import chance
from limpid.doctor.description.columns import columns
from limpid.doctor.description.entered import entered
from limpid.doctor.description.influence import by_distance, by_pixel
from limpid.doctor.description.others import moves
from limpid.doctor.description.overwritten import overwritten
from limpid.doctor.description.reach import Reach
from limpid.doctor.description.reach_back import reach_back
from limpid.doctor.description.rounding import rounding
from limpid.doctor.description.series import series
from limpid.doctor.description.words import number

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.finding import Skipped


class Told(Protocol):
    """What a probe has found."""

    def told(self) -> Iterator[str]:
        """In sentences."""


PROBES: dict[str, Callable[[Exam], Iterator[str]]] = {
    "how far back a gradient comes": lambda exam: _told(reach_back(exam)),
    "which outputs an input moves": lambda exam: (one.told() for one in moves(exam)),
    "columns": lambda exam: _told(columns(exam)),
    "places of a series": lambda exam: _told(*series(exam)),
    "tokens by distance": lambda exam: _told(by_distance(exam)),
    "pixels": lambda exam: _told(by_pixel(exam)),
    "what the first layer is given": lambda exam: _told(entered(exam)),
    "writes in place": lambda exam: _told(overwritten(exam)),
    "chance in training mode": lambda exam: _told(chance(exam)),
    "rounding": lambda exam: _told(rounding(exam)),
}
"""In the order in which they are told; what one of them cannot do takes nothing from the others."""


@dataclass(frozen=True)
class Tried:
    """What outputs read and what becomes of them, in sentences."""

    reach: Reach | None
    lines: tuple[str, ...]

    def told(self) -> Iterator[str]:
        """Of the first time."""
        if self.lines:
            yield "as tried in evaluation mode on rows of the first batch, before the first update:"
            yield from self.lines

    def told_again(self, step: int, first: Tried) -> Iterator[str]:
        """Of a later time: what is otherwise than at first."""
        others = [line for line in self.lines if line not in first.lines]
        lost = len(first.lines) - (len(self.lines) - len(others))
        if others:
            same = "" if lost == len(first.lines) else ", all else as at first"
            how = f"in evaluation mode on rows of step {number(step)}, with the model as it is now{same}"
            yield f"as tried again {how}:"
            yield from others
        elif self.lines:
            yield f"tried again on rows of step {number(step)}, with the model as it is now: the same"
        elif first.lines:
            yield "not tried again: the model as it is now takes no such rows"


def tried(exam: Exam, found: Reach | None, skipped: Skipped) -> Tried:
    """Measured on a few rows of the exam's call, in passes that leave everything as it was; told after the reach."""
    lines = [] if found is None else list(found.told())
    for name, probe in PROBES.items():
        with skipped.noting(name):
            lines += probe(exam)
    return Tried(found, tuple(lines))


def _told(*found: Told | None) -> Iterator[str]:
    for one in found:
        yield from () if one is None else one.told()
