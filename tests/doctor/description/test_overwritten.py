"""Blocks that write over what they are given, in a residual network that keeps its shortcut or loses it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid


class Block(nn.Module):
    """An activation in front of a map, with a shortcut around both."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.act, self.map = nn.LeakyReLU(0.1, inplace=in_place), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.map(self.act(x))
        return out


@pytest.mark.parametrize("in_place", [True, False])
def test_what_blocks_overwrite(in_place: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), Block(in_place), Block(in_place), nn.Linear(8, 1))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            x = torch.randn(16, 12)
            loss = F.mse_loss(model(x), x[:, :1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, x)
    assert doctor.description is not None
    said = [line for line in doctor.description.of("model") if "in place" in line]
    assert said == (["1, 2 overwrite in place what they are given"] if in_place else [])
