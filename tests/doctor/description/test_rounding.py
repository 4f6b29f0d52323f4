"""What rounding does to outputs, and in which module it arises."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from limpid.doctor.description.rounding import TOLD

FAR = 1000.0
"""Where the points lie, whose distances are about 1."""


class Distances(nn.Module):
    """Squared distances from 16 centres: of differences, or as squares less products, which cancel far from 0."""

    def __init__(self, as_products: bool, width: int = 4) -> None:
        super().__init__()
        self.centres, self.as_products = nn.Parameter(torch.randn(16, width) + FAR), as_products

    def forward(self, x: Tensor) -> Tensor:
        if not self.as_products:
            return (x[:, None] - self.centres).square().sum(-1)
        squares = x.square().sum(-1, keepdim=True) + self.centres.square().sum(-1)
        return squares - 2 * x @ self.centres.T


def lines(model: nn.Module, autocast: bool = False) -> list[str]:
    """Those of the page of a few steps that tell of it."""
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x = torch.randn(32, 4) + FAR
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = F.mse_loss(model(x)[:, 0], x[:, 0] - FAR)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, x)
    assert dict(doctor.skipped) == {}
    return [line.text for line in doctor.description.lines if "float64" in line.text]


def model(first: nn.Module) -> nn.Sequential:
    return nn.Sequential(first, nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))


def test_squares_less_products_cancel_in_single_precision() -> None:
    torch.manual_seed(0)
    line, *_ = lines(model(Distances(True)))
    found = re.search(r"lie (\S+) of .* arises in 0: (\S+) of what it is given, (\S+) of what it returns", line)
    assert found is not None
    unit = FAR**2 * 4 * torch.finfo(torch.float32).eps  # of the squares that cancel; distances differ by some units
    assert unit / 20 < float(found[1]) < unit
    assert float(found[2]) == 0
    assert float(found[3]) == pytest.approx(float(found[1]), rel=0.5)


def test_nothing_is_told_of_what_float32_leaves() -> None:
    torch.manual_seed(0)
    assert lines(model(Distances(False))) == []


def test_bfloat16_is_told_as_it_is() -> None:
    torch.manual_seed(0)
    centred = nn.BatchNorm1d(4)  # else numbers near 1000 are whole in bfloat16, and arise there
    line, *_ = lines(nn.Sequential(centred, nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)), autocast=True)
    found = re.search(r"lie (\S+) of", line)
    assert found is not None
    assert TOLD < float(found[1]) < 0.05


def test_outputs_that_are_alike_in_all_rows_are_no_measure() -> None:
    torch.manual_seed(0)
    head = nn.Linear(4, 1)
    nn.init.zeros_(head.weight)
    assert lines(nn.Sequential(head)) == []
