"""The usual call on a table of measured numbers, made again with other rows in the table's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from limpid.doctor.calls import Call
    from limpid.doctor.exam import Exam


def table_of(exam: Exam) -> tuple[Call, Tensor] | None:
    """The usual call, and the table (row, column) of measured numbers among what it gives."""
    call = exam.usual_call
    if call is None or not exam.may_call:
        return None
    given = [v for v in [*call.args, *call.kwargs.values()] if isinstance(v, torch.Tensor)]
    table = next((v for v in given if v.is_floating_point()), None)
    fits = table is not None and table.ndim == 2 and len(table) >= 8 and 1 < table.shape[1] <= 512
    usable = fits and table is not None and table.layout == torch.strided and bool(torch.isfinite(table).all())
    return (call, table.detach()) if usable and table is not None and not table.requires_grad else None


def outputs_of(exam: Exam, call: Call, table: Tensor, rows: Tensor, training: bool = False) -> Tensor | None:
    """What comes of the call with other rows in the table's place."""

    def put(value: object) -> object:
        same = isinstance(value, torch.Tensor) and value.shape == table.shape and torch.equal(value.detach(), table)
        return rows if same else value

    return exam.output(call.mapped(put), training)
