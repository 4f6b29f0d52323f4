"""Blocks and adapters that leave the graph after an evaluation, and loops that leave some out on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import alarms, table


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.other(self.one(x).relu())
        return out


class Net(nn.Module):
    """Blocks that may be passed by, an adapter that may be left out, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.blocks = nn.Linear(6, 8), nn.ModuleList(Block() for _ in range(3))
        self.lora_a, self.lora_b = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.first, self.second = nn.Linear(8, 1), nn.Linear(8, 1)
        self.merged, self.head, self.drop = False, "both", 0.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x if self.training and float(torch.rand(())) < self.drop else block(x)
        x = x if self.merged else x + self.lora_b(self.lora_a(x))
        heads = {"first": [self.first], "second": [self.second], "both": [self.first, self.second]}[self.head]
        out: Tensor = sum((head(x) for head in heads), torch.zeros(()))
        return out


def said(change: Callable[[Net, int], None], evaluates: bool = True) -> bool:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(120):
            batch = table()
            loss = F.mse_loss(model(batch[0]).flatten(), batch[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
            if step % 30 == 9 and evaluates:
                with torch.no_grad():
                    model.eval()(batch[0])
                    model.train()
            change(model, step)
    assert dict(doctor.skipped) == {}
    return "left-out-since" in alarms(doctor)


def hooked(model: Net, step: int) -> None:
    if step == 9:
        model.blocks[1].register_forward_hook(lambda module, given, out: given[0])


def merged(model: Net, step: int) -> None:
    model.merged |= step == 9


@pytest.mark.parametrize("change", [hooked, merged])
def test_what_an_evaluation_leaves_behind(change: Callable[[Net, int], None]) -> None:
    assert said(change)


def another_task(model: Net, step: int) -> None:
    if step == 9:
        model.head = "second"


def tasks_in_turn(model: Net, step: int) -> None:
    model.head = "second" if step // 30 % 2 else "first"


def frozen(model: Net, step: int) -> None:
    if step == 9:
        model.blocks[0].requires_grad_(False)
        for parameter in model.blocks[0].parameters():
            parameter.grad = None


def dropped_by_chance(model: Net, step: int) -> None:
    model.drop = 0.5


def undone(model: Net, step: int) -> None:
    model.merged = 9 <= step < 40


def nothing(model: Net, step: int) -> None:
    pass


@pytest.mark.parametrize("change", [nothing, another_task, tasks_in_turn, frozen, dropped_by_chance, undone])
def test_what_is_left_out_on_purpose(change: Callable[[Net, int], None]) -> None:
    assert not said(change)


def test_without_an_evaluation_nobody_has_left_anything_behind() -> None:
    assert not said(hooked, evaluates=False)
