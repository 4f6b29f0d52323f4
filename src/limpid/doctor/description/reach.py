"""Which outputs read a token: measured by changing one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from limpid.doctor.description.words import number

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.calls import Call
    from limpid.doctor.exam import Exam


def reach(exam: Exam) -> tuple[str, ...]:
    """What moves beyond rounding when a token in the middle of the first row is another, and when padding is."""
    call = exam.probe
    if call is None or call.ids is None or call.ids.shape[1] < 3:
        return ()
    ids, at = call.ids, call.ids.shape[1] // 2
    changed = ids.clone()
    changed[0, at] = exam.other_ids(ids)[0, at]
    said = []
    far = _moved(exam, call, changed)
    if far is not None and far.ndim == 2:
        said.append(f"another token at position {at} of row 0 moves {_which(far)}")
    if call.mask is not None and call.mask.shape == ids.shape and bool((call.mask == 0).any()):
        hidden = call.mask == 0
        far = _moved(exam, call, torch.where(hidden, exam.other_ids(ids), ids))
        if far is not None:
            seen = far[~hidden] if far.shape == ids.shape else far
            which = "some" if bool(seen.any()) else "none"
            said.append(f"other tokens where the mask is 0 move {which} of the outputs where it is not")
    return tuple(said)


def _moved(exam: Exam, call: Call, ids: Tensor) -> Tensor | None:
    """Which outputs, (row, position) or (row,), move beyond rounding when the model is given other tokens."""
    first, second = exam.logits(call), exam.logits(call.with_ids(ids, call.ids))
    if first is None or second is None or first.shape != second.shape or first.ndim < 2 or len(first) != len(ids):
        return None
    return (first - second).abs().nan_to_num(0.0).amax(-1) > exam.rounding


def _which(far: Tensor) -> str:
    own, others = far[0].nonzero().flatten().tolist(), bool(far[1:].any())
    rows = "and other rows" if others else "of no other row"
    if not own:
        return "no output of its row" + (", but other rows" if others else "")
    span = f"{number(own[0])} to {number(own[-1])}" if len(own) > 1 else number(own[0])
    gaps = "" if len(own) == own[-1] - own[0] + 1 else f", {number(len(own))} of these"
    return f"the outputs at {span} of {number(far.shape[1])}{gaps}, {rows}"
