"""Scores of rows with candidates: which candidate is a row's target, and whether it is among its candidates itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.description.words import number

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FEWEST, MOST = 4, 2**20
"""Rows that tell an order from chance, and scores that are looked at."""
CORNER = 64
"""Rows and candidates that are looked at first; most scores that are not symmetric are not so there."""
SHUT_OUT = -1e4
"""Scores of candidates that are taken out lie below."""
ROUNDINGS, OF_HALF = 64, 4
"""Units of round-off of the largest score that a score and its mirror image may lie apart; in half precision, whose
products are summed in float32."""
DIFFERENT = 0.1
"""Of the deviation of scores: a score and its mirror image further apart, the mean, are no rounding of any format."""


@dataclass(frozen=True)
class Candidates:
    """Of one softmax over candidates."""

    rows: int
    count: int  # of candidates
    target: str  # where a row's target stands
    itself: str  # whether a row is among its candidates; empty where scores do not tell

    @classmethod
    def of(cls, scores: Tensor, target: Tensor) -> Candidates | None:
        """Of (row, candidate) and the number of each row's target; None where rows choose among classes."""
        if scores.ndim != 2 or target.shape != scores.shape[:1] or target.is_floating_point():
            return None
        rows, count = scores.shape
        if rows < FEWEST or not rows - 1 <= count <= 2 * rows or scores.numel() > MOST:
            return None
        if bool(((target < 0) | (target >= count)).any()):
            return None
        scores = scores.detach()
        offsets = (target - torch.arange(rows, device=target.device)) % count
        is_fixed, itself = bool((offsets == offsets[0]).all()), _itself(scores, target)
        if is_fixed:
            offset = number(int(offsets[0]))
            where = f"{offset} places on from its own number, round the end" if offset != "0" else "on the diagonal"
        else:
            where = f"always number {int(target[0])}" if bool((target == target[0]).all()) else "at no fixed place"
        return cls(rows, count, where, itself or _of_others(scores)) if is_fixed or itself else None

    def told(self) -> str:
        what = f"each of {number(self.rows)} rows chooses among {number(self.count)} candidates"
        return f"{what}, its target {self.target}" + (f"; {self.itself}" if self.itself else "")


def candidates(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Of each softmax over candidates of a step."""
    for told, same in itertools.groupby(one.told() for one in record.candidates):
        times = len(list(same))
        yield f"{told} (×{times})" if times > 1 else told


def _itself(scores: Tensor, target: Tensor) -> str:
    """Whether a row is among its own candidates, as symmetric scores or one largest score of all rows show."""
    rows, count = scores.shape
    own = torch.arange(rows, device=scores.device)
    for first in sorted({0, count - rows}) if count >= rows else ():
        square = scores[:, first : first + rows]
        if all(_is_symmetric(square[:size, :size]) for size in (min(rows, CORNER), rows)):
            where = "the diagonal" if not first else f"the diagonal from candidate {number(first)} on"
            return _on_diagonal(scores, target, own + first, where)
    for first in sorted({0, count - rows + 1}):
        beside = scores[:, first : first + rows - 1]
        if all(_is_symmetric(_with_diagonal(beside[:size, : size - 1])) for size in (min(rows, CORNER), rows)):
            return "a row itself is not among them (scores are symmetric, the diagonal is left out)"
    best, places = scores.max(1)
    if float(best.max() - best.min()) <= _rounding(scores) and bool(best.isfinite().all()):
        hit = int((places == target).sum())
        return (
            f"the largest score of every row is the same, {float(best[0]):.4g}, as of a vector of length one with "
            f"itself; it is the target's in {number(hit)} of {number(rows)} rows"
        )
    return ""


def _on_diagonal(scores: Tensor, target: Tensor, places: Tensor, where: str) -> str:
    own = scores.gather(1, places[:, None])[:, 0]
    if bool((own <= SHUT_OUT).all()):
        return f"a row itself is not among them (scores are symmetric, {where} is shut out)"
    if bool((places == target).all()):
        return f"a row itself is its target (scores are symmetric, {where})"
    shares = scores.double().softmax(1)
    largest = int((own >= scores.amax(1)).sum())
    share, of_target = (float(shares.gather(1, one[:, None]).mean()) for one in (places, target))
    return (
        f"a row itself is among them (scores are symmetric, {where}): its score with itself is the largest in "
        f"{number(largest)} of {number(len(scores))} rows and has {share:.2g} of the probability, its target "
        f"{of_target:.2g}"
    )


def _with_diagonal(scores: Tensor) -> Tensor:
    """(row, row - 1) with a diagonal of zeros put in."""
    rows = len(scores)
    square = scores.new_zeros(rows, rows)
    square[~torch.eye(rows, dtype=torch.bool, device=scores.device)] = scores.reshape(-1)
    return square


def _of_others(scores: Tensor) -> str:
    """Of scores that are far from symmetric."""
    rows, count = scores.shape
    size = min(rows, CORNER)
    firsts = sorted({0, count - rows}) if count >= rows else []
    squares = [scores[:size, first : first + size] for first in firsts]
    pairs = [_mirrored(one) for one in squares]
    far = all(float((a - b).abs().mean()) > DIFFERENT * float(a.std()) for a, b in pairs if len(a) > size)
    return "scores are not symmetric: rows and candidates are different vectors" if pairs and far else ""


def _mirrored(square: Tensor) -> tuple[Tensor, Tensor]:
    """Scores beside the diagonal and what is shut out, and their mirror images."""
    beside = ~torch.eye(len(square), dtype=torch.bool, device=square.device)
    beside &= (square > SHUT_OUT) & (square.T > SHUT_OUT) & square.isfinite() & square.T.isfinite()
    return square[beside].double(), square.T[beside].double()


def _is_symmetric(square: Tensor) -> bool:
    """Whether scores are those of vectors with themselves."""
    there, mirrored = _mirrored(square)
    if len(there) < len(square):
        return False
    rounding = _rounding(square)
    return float((there - mirrored).abs().max()) <= rounding < float(there.max() - there.min())


def _rounding(scores: Tensor) -> float:
    there = scores[(scores > SHUT_OUT) & scores.isfinite()]
    unit = torch.finfo(scores.dtype).eps / 2
    size = float(there.abs().max()) if len(there) else 0.0
    return (OF_HALF if unit > 1e-4 else ROUNDINGS) * unit * size
