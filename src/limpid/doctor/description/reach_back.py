"""How far back the gradient of an output comes: to which tokens of its row, beside those that move it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.calls import find_logits
from limpid.doctor.undisturbed import seeded, undisturbed

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam

POSITIONS = 32
"""Of one row: what is cut is cut everywhere."""


@dataclass(frozen=True)
class ReachBack:
    """Of the last output of a row, where it is not the last token alone that it reads."""

    positions: int
    moved: bool  # whether another token in the middle moves it
    reached: tuple[int, ...]  # tokens at which its gradient arrives

    def told(self) -> Iterator[str]:
        """In a sentence; nothing where the gradient comes to what moves the output."""
        if not self.moved or self.positions // 2 in self.reached:
            return
        at = f"tokens at {', '.join(map(str, self.reached[:8]))} alone" if self.reached else "no token"
        yield (
            f"of {self.positions} tokens another one at position {self.positions // 2} moves the last output, whose "
            f"gradient comes back to {at}"
        )


def reach_back(exam: Exam) -> ReachBack | None:
    """Measured by one backward pass on one row, in evaluation mode, from the last output to what the table gives."""
    table, probe = exam.info.table, exam.probe
    call = None if probe is None else probe.rows(slice(0, 1), POSITIONS)
    if call is None or call.ids is None or call.ids.shape[1] < 3 or table is None:
        return None
    length = call.ids.shape[1]
    changed = call.ids.clone()
    changed[0, length // 2] = exam.other_ids(call.ids)[0, length // 2]
    given: list[Tensor] = []

    def leaf(_: torch.nn.Module, __: tuple[Tensor, ...], made: Tensor) -> Tensor:
        given.append(made.detach().requires_grad_())
        return given[-1]

    with undisturbed(exam.shield, gradients=True):
        exam.model.eval()
        seeded()
        handle = table.register_forward_hook(leaf)
        try:
            first, second = (find_logits(one.make(exam.model)) for one in (call.with_ids(changed, call.ids), call))
        finally:
            handle.remove()
        if first is None or second is None or second.ndim != 3 or not second.requires_grad or len(given) != 2:
            return None
        weights = torch.arange(second.shape[-1], device=second.device).cos()  # a sum of them may not move at all
        (second[0, -1].float() * weights).sum().backward()  # reentrant checkpoints know no torch.autograd.grad
        back = given[1].grad
    if back is None or back.ndim != 3 or back.shape[1] != length:
        return None
    apart = float((first[0, -1] - second[0, -1]).detach().abs().max())
    reached = back[0].abs().sum(-1).nonzero().flatten().tolist()
    return ReachBack(length, apart > exam.rounding, tuple(reached))
