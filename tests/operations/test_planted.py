"""Faults planted below a recording, in each operation of a step: found, at the right call, and nowhere else."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import limpid
from limpid.operations import Report
from limpid.operations.call import Check
from operations.models import step_of


class Planted(TorchDispatchMode):
    """Some calls, by their numbers, give something else."""

    def __init__(self, numbers: set[int], how: str) -> None:
        super().__init__()
        self.numbers, self.how, self.count = numbers, how, -1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            self.count += 1
            if self.count in self.numbers:
                self.spoil(made[0] if isinstance(made, list | tuple) else made)
        return made

    def spoil(self, result: Tensor) -> None:
        if self.how == "scaled":
            result.mul_(1.03)
        else:
            flat = result.abs().flatten()
            result[torch.unravel_index(flat.argmax(), result.shape)] *= 1.1


def step(name: str, planted: Planted) -> Report:
    model, loss_of = step_of(name)
    model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with planted, limpid.recording(model, optimizer) as recorded:
        loss_of(model).backward()
        optimizer.step()
    return recorded.verify()


@pytest.mark.parametrize("how", ["scaled", "one entry"])
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Mamba", "convolutions"])
def test_faults_planted_in_every_operation_are_found_at_their_calls(name: str, how: str) -> None:
    places: dict[str, int] = {}
    for call in step(name, Planted(set(), how)).calls:
        worst = call.worst
        if call.check is Check.REDONE and call.dtype == "float32" and worst is not None and abs(worst.expected) > 1e-30:
            places.setdefault(call.operation, call.number)
    assert len(places) > 20
    wrong = step(name, Planted(set(places.values()), how)).wrong
    assert {call.operation: call.number for call in wrong} == places
    assert len(wrong) == len(places)
