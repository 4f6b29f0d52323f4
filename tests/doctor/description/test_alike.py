"""Copies of one tensor: kept equal, and left to drift."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid


class Stages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(8, 6))
        self.last = nn.Parameter(self.first.detach().clone())

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.first) @ self.last.T


def told(model: nn.Module, adds_up: bool) -> str:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            ids = torch.randint(0, 8, (4, 9))
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            if adds_up:
                one, two = (p.grad for p in model.parameters())
                one.add_(two)
                two.copy_(one)
            optimizer.step()
            doctor.step(loss, ids)
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    return "\n".join(doctor.description.of("model"))


@pytest.mark.parametrize(("adds_up", "now"), [(True, "still are"), (False, "of their size apart now")])
def test_copies_of_a_table(adds_up: bool, now: str) -> None:
    line = next(line for line in told(Stages(), adds_up).splitlines() if line.startswith("first, last were equal"))
    assert now in line


def test_layers_that_were_copied_are_one_line() -> None:
    layer = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model = nn.Sequential(nn.Embedding(8, 8), *(copy.deepcopy(layer) for _ in range(3)), nn.Linear(8, 8))
    assert "4 groups of tensors were equal when training began, 0 of them still are: *.*.weight, *.*.bias" in told(
        model, False
    )


def test_tensors_that_begin_with_one_number_are_no_copies() -> None:
    model = nn.Sequential(nn.Embedding(8, 6), nn.LayerNorm(6), nn.LayerNorm(6), nn.Linear(6, 8))
    assert "were equal" not in told(model, False)
