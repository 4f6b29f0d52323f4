"""How far outputs are moved from near and from far: tokens by their distance, pixels by where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from limpid.doctor.calls import find_logits, find_rows
from limpid.doctor.description.others import far, outputs, with_other
from limpid.doctor.description.words import number, span

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam

DISTANCES = (0, 1, 2, 4, 8, 16, 32)
"""Places before an output, a row of a pass each."""
FEWEST = 4
"""Places of a row, and pixels of a side, from which on anything is told."""


@dataclass(frozen=True)
class ByDistance:
    """How far the last output of the first row moves when a token some places before it is another."""

    sizes: tuple[tuple[int, float], ...]  # distance, over the largest of them

    def told(self) -> Iterator[str]:
        """In a sentence."""
        each = ", ".join(f"{distance}: {size:.2g}" for distance, size in self.sizes)
        yield (
            "the last output of row 0 moves, when a token so many places before it is another, by "
            f"{each} of the largest of these"
        )


@dataclass(frozen=True)
class ByPixel:
    """Which outputs of the first picture move when the pixel in its middle is another."""

    at: tuple[int, int]
    moved: Tensor  # (row, column)
    others: int  # other pictures that move

    def told(self) -> Iterator[str]:
        """In a sentence."""
        row, column = self.at
        places = self.moved.nonzero()
        where = f"another pixel at {row}, {column} of picture 0"
        if not len(places):
            yield f"{where} moves none of its outputs"
            return
        rows, columns = (span([int(axis.min()), int(axis.max())]) for axis in places.T)
        near = {"the same": (0, 0), "the left": (0, -1), "the right": (0, 1), "above": (-1, 0), "below": (1, 0)}
        still = [name for name, (i, j) in near.items() if not bool(self.moved[row + i, column + j])]
        beside = f", not that at {', '.join(still)}" if still else ""
        also = f"; outputs of {number(self.others)} other pictures move, too" if self.others else ""
        yield f"{where} moves {number(len(places))} of its outputs, at rows {rows} and columns {columns}{beside}{also}"


def by_distance(exam: Exam) -> ByDistance | None:
    """Of a model whose outputs have the places of its tokens."""
    call = exam.probe
    if call is None or call.ids is None or call.ids.shape[1] < FEWEST or call.mask is not None:
        return None
    ids, last = call.ids, call.ids.shape[1] - 1
    alike = ids[:1].repeat(len(ids), 1)
    first = outputs(exam, call.with_ids(alike, ids), find_logits)
    if first is None or first.ndim != 3 or first.shape[:2] != ids.shape:
        return None
    found: list[tuple[int, float]] = []
    tried = [distance for distance in DISTANCES if distance <= last]
    for start in range(0, len(tried), len(ids)):  # each row another
        distances = tried[start : start + len(ids)]
        changed = alike.clone()
        for row, distance in enumerate(distances):
            changed[row, last - distance] = exam.other_ids(ids)[0, last - distance]
        other = outputs(exam, call.with_ids(changed, ids), find_logits)
        if other is None:
            return None
        moved = (other[:, last] - first[:, last]).float().norm(dim=-1).tolist()
        found += zip(distances, moved, strict=False)
    most = max((size for _, size in found), default=0.0)
    return ByDistance(tuple((distance, size / most) for distance, size in found)) if most else None


def by_pixel(exam: Exam) -> ByPixel | None:
    """Of a model of pictures whose outputs have their pixels."""
    call = None if exam.info.translates else exam.few_rows
    call = None if call is None else call.without_loss()
    given = [] if call is None else [x for x in call.tensors.values() if x.ndim == 4 and x.is_floating_point()]
    if call is None or len(given) != 1 or min(given[0].shape[2:]) < FEWEST:
        return None
    (x,) = given
    base = outputs(exam, call, find_rows)
    if base is None or base.ndim < 3 or base.shape[-2:] != x.shape[2:] or len(base) != len(x):
        return None
    at = (x.shape[2] // 2, x.shape[3] // 2)
    changed = x.detach().clone()
    changed[0, :, at[0], at[1]] += 1 + float(x.detach().std())
    now = outputs(exam, with_other(call, x, changed), find_rows)
    if now is None or now.shape != base.shape:
        return None
    moved = far(base, now)
    others = int(moved[1:].reshape(len(moved) - 1, -1).any(1).sum()) if len(moved) > 1 else 0
    return ByPixel(at, moved[0].reshape(-1, *x.shape[2:]).any(0), others)
