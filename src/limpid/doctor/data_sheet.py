"""What a step's rows are: measured inputs as the model was given them, and one or more target numbers for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from limpid.doctor.calls import LABEL_NAMES

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord


def tensors_in(given: Any) -> Iterator[Tensor]:
    """The tensors of a tuple, a list or a mapping, or the tensor itself."""
    if isinstance(given, Tensor):
        yield given
    for one in given.values() if isinstance(given, Mapping) else given if isinstance(given, tuple | list) else ():
        if isinstance(one, Tensor):
            yield one


def is_table(tensor: Tensor) -> bool:
    """Whether it is a plain table of numbers."""
    return tensor.layout == torch.strided and bool(tensor.numel())


def readable(record: StepRecord, tensor: Tensor) -> Tensor | None:
    """A plain table of numbers, on the host; None where it is none, or reading it takes long."""
    found = record.host(tensor) if is_table(tensor) else None
    return None if found is None else found.detach()


def row_inputs(record: StepRecord) -> Tensor | None:
    """The first tensor of measured numbers (row, …) that the model is given, where nobody learns it."""
    call = record.calls[0] if record.calls else None
    given = [] if call is None else [one for one in [*call.args, *call.kwargs.values()] if isinstance(one, Tensor)]
    first = next((one for one in given if one.is_floating_point() and one.ndim >= 2 and len(one) >= 2), None)
    return None if first is None or first.requires_grad else readable(record, first)


def row_targets(record: StepRecord) -> Tensor | None:
    """The last tensor of a batch of several, or the one that is called its targets: (row, …), not among the inputs."""
    given = record.micros[0].given if len(record.micros) == 1 else None
    if isinstance(given, Mapping):
        target: Tensor | None = next((given[n] for n in LABEL_NAMES if isinstance(given.get(n), Tensor)), None)
    else:
        held = list(given) if isinstance(given, tuple | list) else []
        several = len(held) > 1 and all(map(_is_of_tensors, held[:-1]))
        target = held[-1] if several and isinstance(held[-1], Tensor) else None
    if target is None or target.dtype == torch.bool or not target.ndim:
        return None
    numbers = readable(record, target)
    if numbers is None:
        return None
    for call in record.calls:
        for one in tensors_in([*call.args, *call.kwargs.values()]):
            if one is target or (one.numel() == target.numel() and _equal(readable(record, one), numbers)):
                return None
    return numbers


def _is_of_tensors(given: Any) -> bool:
    """Whether it is a tensor, or several as a model takes them."""
    return isinstance(given, Tensor) or (
        isinstance(given, tuple | list) and bool(given) and all(isinstance(one, Tensor) for one in given)
    )


def _equal(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and bool((one.reshape(-1) == other.reshape(-1)).all())


def answers(record: StepRecord) -> tuple[Tensor, Tensor, Tensor] | None:
    """Outputs, their gradients and the batch's targets of a regression of one pass, (row, number) each."""
    target = row_targets(record)
    if target is None or not target.is_floating_point() or len(record.row_gradients) != 1 or len(record.calls) != 1:
        return None
    outputs, gradient = record.row_gradients[0]
    if not outputs.numel() or outputs.numel() != target.numel() or len(outputs) != len(target):
        return None
    made = [one.detach().double().reshape(len(target), -1) for one in (outputs, gradient, target)]
    return (made[0], made[1], made[2]) if all(bool(torch.isfinite(one).all()) for one in made) else None


def rows_in_order(record: StepRecord) -> bool:
    """Whether the model is given the rows of the batch in the batch's order: each is most like its own."""
    given = record.micros[0].given if len(record.micros) == 1 else None
    held, inside = (
        next(tensors_in(given), None),
        next(tensors_in([*record.calls[0].args, *record.calls[0].kwargs.values()]), None),
    )
    if held is None or inside is None or held.shape != inside.shape:
        return False
    both = [one for one in (readable(record, held), readable(record, inside)) if one is not None]
    if len(both) < 2:
        return False
    a, b = (one.reshape(len(one), -1)[:256, :512].float() for one in both)
    if bool((a == b).all()):
        return True
    a, b = (one - one.mean(0) for one in (a, b))
    alike = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T
    return float((alike.argmax(1) == torch.arange(len(alike))).double().mean()) > 0.9
