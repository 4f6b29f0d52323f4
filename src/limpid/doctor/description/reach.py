"""Which outputs read a token: measured by changing one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from limpid.doctor.calls import find_logits
from limpid.doctor.description.others import far, outputs
from limpid.doctor.description.words import number

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.calls import Call
    from limpid.doctor.exam import Exam


@dataclass(frozen=True)
class Reach:
    """Which outputs move beyond rounding when a token in the middle of the first row is another, or all padding."""

    at: int
    positions: int  # outputs of a row; 0 where they have no places
    moved: tuple[int, ...]  # of the first row
    own: bool  # whether any output of the first row moves
    other_rows: bool
    which_rows: tuple[int, ...]  # the other rows that move
    padding_seen: bool | None  # whether outputs at tokens move with the padding; None where there is none

    def told(self) -> Iterator[str]:
        """In sentences."""
        if self.positions or self.own or self.other_rows:
            yield f"another token at position {self.at} of row 0 moves {self._which()}"
        if self.padding_seen is not None:
            which = "some" if self.padding_seen else "none"
            yield f"other tokens where the mask is 0 move {which} of the outputs where it is not"

    def _which(self) -> str:
        named = f"row{'s' if len(self.which_rows) > 1 else ''} {', '.join(map(number, self.which_rows))}"
        rows = f"and outputs of {named}" if self.other_rows else "of no other row"
        if not self.own:
            return "no output of its row" + (f", but outputs of {named}" if self.other_rows else "")
        if not self.positions:
            return f"the output of row 0, {rows}"
        first, last = self.moved[0], self.moved[-1]
        span = f"{number(first)} to {number(last)}" if len(self.moved) > 1 else number(first)
        gaps = "" if len(self.moved) == last - first + 1 else f", {number(len(self.moved))} of these"
        return f"the outputs at {span} of {number(self.positions)}{gaps}, {rows}"


def reach(exam: Exam) -> Reach | None:
    """Measured on the batch that the exam has."""
    call = exam.probe
    if call is not None and exam.plain is None and exam.usual_call is not None:
        call = exam.usual_call.without_loss()  # it takes no fewer rows
    if call is None or call.ids is None or call.ids.shape[1] < 3:
        return None
    ids, at = call.ids, _middle(call)
    changed = ids.clone()
    changed[0, at] = exam.other_ids(ids)[0, at]
    far = _moved(exam, call, changed)
    placed = far is not None and far.ndim == 2
    padding_seen = None
    if call.mask is not None and call.mask.shape == ids.shape and bool((call.mask == 0).any()):
        hidden = call.mask == 0
        beyond = _moved(exam, call, torch.where(hidden, exam.other_ids(ids), ids))
        if beyond is not None:
            padding_seen = bool((beyond[~hidden] if beyond.shape == ids.shape else beyond).any())
    others = () if far is None else tuple(r for r in range(1, len(far)) if bool(far[r].any()))
    if not placed or far is None:
        own = far is not None and bool(far[0].any())
        return Reach(at, 0, (), own, others != (), others, padding_seen)
    moved = tuple(far[0].nonzero().flatten().tolist())
    return Reach(at, far.shape[1], moved, bool(moved), others != (), others, padding_seen)


def _middle(call: Call) -> int:
    """The place in the middle of the first row, of those that its mask shows: nobody reads another."""
    width = 0 if call.ids is None else call.ids.shape[1]
    masked = call.mask is not None and call.ids is not None and call.mask.shape == call.ids.shape
    shown = call.mask[0].nonzero().flatten().tolist() if masked and call.mask is not None else []
    return int(shown[len(shown) // 2]) if shown else width // 2


def _moved(exam: Exam, call: Call, ids: Tensor) -> Tensor | None:
    """Which outputs, (row, position) or (row,), move beyond rounding when the model is given other tokens."""
    if call is exam.probe:
        first, second = exam.logits_once(call), exam.logits(call.with_ids(ids, call.ids))
    else:
        first, second = (outputs(exam, one, find_logits) for one in (call, call.with_ids(ids, call.ids)))
    if first is None or second is None or first.shape != second.shape or first.ndim < 2 or len(first) != len(ids):
        return None
    if call is exam.probe:
        return (first - second).abs().nan_to_num(0.0).amax(-1) > exam.rounding
    return far(first, second).any(-1)
