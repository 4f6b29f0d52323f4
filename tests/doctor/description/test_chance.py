"""What random numbers do to outputs in training mode, and how large evaluation mode makes them beside that."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import net, table


class Locked(nn.Module):
    """Dropout by hand, one mask for a row; `divided` by the share that is kept, or not."""

    def __init__(self, divided: bool, drop: float = 0.5) -> None:
        super().__init__()
        self.divided, self.kept = divided, 1 - drop

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = torch.bernoulli(torch.full_like(x, self.kept))
        return x * mask / (self.kept if self.divided else 1)


def lines(model: nn.Module) -> list[str]:
    """Those of the page of a few steps that tell of it."""
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x, y = table(64)
            loss = F.mse_loss(model(x)[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
    assert dict(doctor.skipped) == {}
    return [line.text for line in doctor.description.lines if "passes in training mode" in line.text]


@pytest.mark.parametrize(("dropout", "times"), [(nn.Dropout(0.5), 1.0), (Locked(True), 1.0), (Locked(False), 2.0)])
def test_how_much_larger_evaluation_makes_outputs(dropout: nn.Module, times: float) -> None:
    torch.manual_seed(0)
    line, *_ = lines(nn.Sequential(nn.Linear(6, 128), dropout, nn.Linear(128, 1)))
    found = re.search(r"differ by (\S+) of .* gives (\S+) times", line)
    assert found is not None
    assert float(found[1]) > 0.2
    assert float(found[2]) == pytest.approx(times, rel=0.25)


def test_nothing_is_told_where_nothing_is_left_to_chance() -> None:
    torch.manual_seed(0)
    assert lines(net(6, 16, 1)) == []
