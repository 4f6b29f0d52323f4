"""Which outputs another value of an input moves, of inputs that are no tokens: a kind, a mask, measured numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limpid.doctor.calls import LABEL_NAMES, MASK_NAMES, find_rows
from limpid.doctor.description.words import number
from limpid.doctor.undisturbed import seeded, undisturbed

if TYPE_CHECKING:
    from limpid.doctor.calls import Call
    from limpid.doctor.exam import Exam

MOST = 4
"""Inputs that are tried, a forward pass each."""
ROUNDINGS = 32
"""Units of round-off of the largest output that two ways to it may lie apart."""


@dataclass(frozen=True)
class Moves:
    """What moves when one input is another in the first row."""

    name: str
    at: int | None  # the place that is hidden or shown, of a mask of places
    own: tuple[int, ...] | None  # places of the first row's outputs; None where outputs have no places
    places: int
    row: bool  # whether any output of the first row moves
    others: int  # rows beside it
    rows: int

    def told(self) -> str:
        what = f"another {self.name}" if self.at is None else f"the other {self.name} at place {self.at}"
        elsewhere = (
            f", and of {number(self.others)} of {number(self.rows - 1)} other rows"
            if self.others
            else ", of no other row"
        )
        if self.own is None or not self.row:
            return f"{what} in row 0 moves {'the' if self.row else 'no'} output of row 0{elsewhere}"
        first, last = self.own[0], self.own[-1]
        which = "all" if len(self.own) == self.places else f"{number(len(self.own))} ({first} to {last})"
        return f"{what} in row 0 moves {which} of the {number(self.places)} outputs of row 0{elsewhere}"


def moves(exam: Exam) -> tuple[Moves, ...]:
    """Measured on a few rows, or on all where the model takes no fewer."""
    usual, whole = exam.few_rows, exam.usual_call
    if usual is None or whole is None or exam.info.translates:
        return ()
    tokens = usual.ids
    told = {*LABEL_NAMES, *MASK_NAMES}  # what a mask hides is told with the tokens
    tried = [name for name, one in usual.tensors.items() if one is not tokens and one.ndim and name not in told]
    for call in (usual, whole):
        base = outputs(exam, call.without_loss(), find_rows)
        if base is not None:
            found = (_moved(exam, call.without_loss(), name, base) for name in tried[:MOST])
            return tuple(one for one in found if one is not None)
    return ()


def outputs(
    exam: Exam, call: Call, find: Callable[[Any], Tensor | None], training: bool = False, seed: int = 0
) -> Tensor | None:
    """Of a pass, in evaluation mode or in training; None where the model does not take such a call."""
    try:
        with undisturbed(exam.shield):
            exam.model.train(training)
            seeded(seed)
            found = find(call.make(exam.model))
            return None if found is None or found.ndim < 1 else found.detach()
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None


def with_other(call: Call, old: Tensor, new: Tensor) -> Call:
    """The same call with another tensor in the place of one that it is given."""
    return call.mapped(lambda value: new if value is old else value)


def far(one: Tensor, other: Tensor) -> Tensor:
    """Where two outputs lie further apart than rounding."""
    unit = ROUNDINGS * torch.finfo(one.dtype).eps / 2 * max(1.0, float(one.abs().nan_to_num().max()))
    return (one.float() - other.float()).abs().nan_to_num(0.0) > unit


def _moved(exam: Exam, call: Call, name: str, base: Tensor) -> Moves | None:
    given = call.tensors[name]
    if (
        given.layout != torch.strided
        or given.ndim < 1
        or len(given) != len(base)
        or len(base) < 2
        or given.is_complex()
    ):
        return None
    other, at = _other(given, call.ids)
    if other is None:
        return None
    now = outputs(exam, with_other(call, given, other), find_rows)
    if now is None or now.shape != base.shape:
        return None
    moved = far(base, now)
    rows = moved.reshape(len(moved), -1).any(1)
    placed = base.ndim > 2
    own = tuple(moved[0].reshape(moved.shape[1], -1).any(1).nonzero().flatten().tolist()) if placed else None
    return Moves(name, at, own, base.shape[1] if placed else 0, bool(rows[0]), int(rows[1:].sum()), len(base))


def _other(given: Tensor, tokens: Tensor | None) -> tuple[Tensor | None, int | None]:
    """The same with another first row: another row's where one differs; of a mask of tokens one place turned."""
    changed = given.clone()
    two = bool(((given == 0) | (given == 1)).all())
    if two and tokens is not None and given.shape == tokens.shape:
        at = given.shape[1] // 2
        changed[0, at] = 1 - given[0, at].int() if given.dtype != torch.bool else ~given[0, at]
        return changed, at
    differ = (given != given[:1]).reshape(len(given), -1).any(1).nonzero().flatten()
    if not len(differ):
        return None, None
    changed[0] = given[int(differ[0])]
    return changed, None
