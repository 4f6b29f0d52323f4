"""Whether attention tells places apart by its queries and keys: asked of a row of one repeated token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.exam import Exam

ALIKE = 1e-5
"""Deviation over size up to which vectors are alike but for rounding."""


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


def places(exam: Exam) -> Places | None:
    """Measured in evaluation mode; None without such an attention, and where vectors of places are added to tokens."""
    scores = exam.attention.of_one_token if exam.may_call else None
    return None if scores is None else Places(_apart(scores.query), _apart(scores.key))


def _apart(vectors: Tensor) -> float:
    """How far (…, place, d) differ between places, root mean square, over their size."""
    x = vectors.double()
    size = x.square().mean().sqrt()
    return float((x - x.mean(-2, keepdim=True)).square().mean().sqrt() / size) if bool(size > 0) else 0.0
