"""Averages and frozen copies: how far they go towards the model, which buffers they take over."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import limpid
from doctor.small_loops import classes


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.norm(self.first(x))))


def said(model: nn.Module, follow: Callable[[], None]) -> str:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x, y = classes()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            follow()
            doctor.step(loss, (x, y))
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    return "\n".join(doctor.description.of("model"))


def test_an_average_of_ones_own() -> None:
    torch.manual_seed(0)
    model = Net()
    average = copy.deepcopy(model).requires_grad_(False).eval()

    def follow() -> None:
        for kept, p in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(p.detach(), 0.25)

    told = said(model, follow)
    assert "another model of its class is held, in evaluation mode, without gradients" in told
    assert "goes 0.25 of its way to this one with an update; 0 of its 2 buffers are equal" in told


def test_an_average_of_torch() -> None:
    torch.manual_seed(0)
    model = Net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    average.update_parameters(model)  # the first is a copy
    told = said(model, lambda: average.update_parameters(model))
    assert "an average of it is held" in told
    assert "goes 0.1 of its way to this one with an update; 0 of its 2 buffers are equal" in told  # averaged as well


def test_a_reference_stands_still() -> None:
    torch.manual_seed(0)
    model = Net()
    reference = copy.deepcopy(model).requires_grad_(False).eval()
    told = said(model, lambda: None)
    assert reference.training is False
    assert "; stands still" in told


def test_a_frozen_part_beside_one_that_learns() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online = Net()
            self.target = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.online(x)

    torch.manual_seed(0)
    model = Both()

    def follow() -> None:
        for kept, p in zip(model.target.parameters(), model.online.parameters(), strict=True):
            kept.lerp_(p.detach(), 0.5)

    told = said(model, follow)
    assert "target is like online, in training mode, without gradients" in told
    assert "goes 0.5 of its way to this one with an update" in told
    assert "training mode: target.norm, which do not train" in told


def test_of_many_frozen_layers_none_is_a_copy_of_the_one_that_learns() -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    model[:3].requires_grad_(False)
    assert "is like" not in said(model, lambda: None)
