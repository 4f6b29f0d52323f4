"""Whether attention tells places apart by its queries and keys: asked of rows of one repeated token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpid.doctor.description.words import number

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.exam import Exam

SHOWN = 4
"""Places that are named."""
ALIKE = 1e-5
"""Deviation over size up to which vectors are alike but for rounding."""
SAME = 1e-2
"""How far keys of neighbours lie apart, over the median of all neighbours, up to which they are the same."""
FEWEST = 8
"""Places of a row from which on neighbours are held against each other."""


@dataclass(frozen=True)
class Places:
    """Of the first attention, where nothing of a place is added to tokens: deviation between places over size."""

    queries: float
    keys: float

    def told(self) -> Iterator[str]:
        """In a sentence."""
        said = [
            f"{name} differ from place to place by {apart:.2g} of their size" if apart > ALIKE else f"{name} do not"
            for name, apart in (("queries", self.queries), ("keys", self.keys))
        ]
        neither = max(self.queries, self.keys) <= ALIKE
        what = "neither queries nor keys differ from place to place" if neither else ", ".join(said)
        yield f"one token in all places: in the first attention {what}"


@dataclass(frozen=True)
class Neighbours:
    """Places whose keys are those of the next place, in the first attention."""

    same: tuple[int, ...]
    places: int

    def told(self) -> Iterator[str]:
        """In a sentence, where there are such."""
        if self.same:
            which = ", ".join(map(number, self.same[:SHOWN])) + (" and so on" if len(self.same) > SHOWN else "")
            yield (
                f"one token in all {number(self.places)} places: in the first attention {number(len(self.same))} keys "
                f"are those of the place after them, at {which}"
            )


def neighbours(exam: Exam) -> Neighbours | None:
    """Measured in evaluation mode on one row of its full length; None where no keys know their places."""
    scores = exam.attention.along_a_row() if exam.may_call and exam.probe is not None else None
    if scores is None or scores.key.ndim != 4 or scores.key.shape[2] < FEWEST:
        return None
    key = scores.key[0].double().transpose(0, 1).flatten(1)  # (place, head and d_head)
    apart = key.diff(dim=0).norm(dim=1)
    typical = float(apart.median())
    if typical <= ALIKE * float(key.norm(dim=1).mean()):
        return None
    return Neighbours(tuple((apart < SAME * typical).nonzero().flatten().tolist()), len(key))


def places(exam: Exam) -> Places | None:
    """Measured in evaluation mode; None without such an attention, and where vectors of places are added to tokens."""
    scores = exam.attention.of_one_token if exam.may_call else None
    return None if scores is None else Places(_apart(scores.query), _apart(scores.key))


def _apart(vectors: Tensor) -> float:
    """How far (…, place, d) differ between places, root mean square, over their size."""
    x = vectors.double()
    size = x.square().mean().sqrt()
    return float((x - x.mean(-2, keepdim=True)).square().mean().sqrt() / size) if bool(size > 0) else 0.0
