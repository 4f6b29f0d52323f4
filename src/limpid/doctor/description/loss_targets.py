"""Which tensors of the batch loss functions are given as targets, and which nobody is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.data_sheet import is_table
from limpid.doctor.description.inputs import held_by_name
from limpid.doctor.description.words import listed

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

NUMBERS = 2**16
"""Of a target that is looked at."""
SHOWN = 8
"""Labels that are told one by one."""


def loss_targets(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Where a step has one micro-batch of several tensors, and loss functions of torch's were called."""
    batch = held_by_name(record) if len(record.micros) == 1 else {}
    targets = [(function, one) for function, one in record.targets if is_table(one)]
    if not batch or not targets:
        return
    found = [_names(target, batch) for _, target in targets]
    if len(targets) > 1:
        said = [f"{function} {what}" for (function, _), what in zip(targets, _each(targets, found), strict=True)]
        yield f"loss functions were called {len(targets)} times; targets in their order: {', '.join(said)}"
    given = [one for call in record.calls for one in call.tensors.values()]
    used = {name for names in found for name in names}
    used |= {name for name, held in batch.items() if any(_same(one, held) for one in given)}
    unread = [name for name in batch if name not in used]
    if unread and any(found):
        yield f"of the batch neither the model nor a loss function of torch's is given {listed(unread)} as it is"


def _each(targets: Sequence[tuple[str, Tensor]], found: Sequence[Sequence[str]]) -> Iterator[str]:
    """Of each call what its target is: of the batch, that of an earlier call, or another."""
    for number, ((_, target), names) in enumerate(zip(targets, found, strict=True)):
        earlier = next((i for i in range(number) if _same(target, targets[i][1])), None)
        other = "a tensor that is not in the batch as it is" if earlier is None else f"that of call {earlier + 1}"
        yield " and ".join(names) or other


def _names(target: Tensor, batch: dict[str, Tensor]) -> list[str]:
    return [name for name, held in batch.items() if _same(target, held)]


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether both hold the same numbers, whatever their shape and format."""
    if not is_table(one) or not is_table(other) or one.numel() != other.numel() or one.device != other.device:
        return False
    if one.numel() > NUMBERS or one.is_complex() or other.is_complex():
        return False
    return bool(torch.equal(one.reshape(-1).double(), other.reshape(-1).double()))


def by_label(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """How large the gradient is at outputs of each label of the batch, of outputs that are scores of classes."""
    if len(record.place_gradients) != 1 or len(record.micros) != 1:
        return
    gradient = record.place_gradients[0]
    for name, held in held_by_name(record).items():
        for axis in dict.fromkeys((1, gradient.ndim - 1)):
            if held.is_floating_point() or held.dtype == torch.bool or held.shape != _without(gradient, axis):
                continue
            sizes = gradient.double().norm(dim=axis).flatten()
            labels, count = held.detach().cpu().flatten(), gradient.shape[axis]
            if said := _sizes(sizes, labels, count):
                yield f"gradient at an output by {name} (norm, mean): {said}"
                return


def _sizes(sizes: Tensor, labels: Tensor, classes: int) -> str:
    """By label, where there are few; else of labels that no class has, and of the rest."""
    values = labels.unique().tolist()
    outside = [value for value in values if not 0 <= value < classes]
    if len(values) > SHOWN:
        if not outside:
            return ""
        inside = (labels >= 0) & (labels < classes)
        each = [(str(value), labels == value) for value in outside[:SHOWN]] + [("of all classes", inside)]
    else:
        each = [(str(value), labels == value) for value in values]
    return ", ".join(f"{value}: {float(sizes[at].mean()):.3g}" for value, at in each if bool(at.any()))


def _without(gradient: Tensor, axis: int) -> Sequence[int]:
    return torch.Size([*gradient.shape[:axis], *gradient.shape[axis + 1 :]])
