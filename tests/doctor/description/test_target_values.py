"""How targets of the run are spread: shares of two values, and tenths of what is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid


def said(targets: Callable[[], Tensor], columns: int) -> list[str]:
    """The lines of a loop with such targets."""
    torch.manual_seed(0)
    model = nn.Linear(12, columns)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(10):
            x, y = torch.randn(16, 12), targets()
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
    assert doctor.description is not None
    return [line for line in doctor.description.of("run") if line.startswith("targets of the first")]


@pytest.mark.parametrize("tags", [1, 3])
def test_shares_of_tags_and_how_many_a_row_has(tags: int) -> None:
    rows = torch.zeros(16, 4)
    rows[:, :tags] = 1
    counted = {1: "100%, 0%, 0%, 0%", 3: "100%, 100%, 100%, 0%"}[tags]
    assert said(lambda: rows, 4) == [
        f"targets of the first 160 rows: 1 in by column {counted}; ones of a row: {tags} in 100%"
    ]


def test_two_units_show_in_tenths() -> None:
    """A third of the numbers is 2.2 times as large."""

    def mixed() -> Tensor:
        kilograms = 70 + 2 * torch.randn(15, 1)
        return torch.cat([kilograms[:10], 2.2 * kilograms[10:], kilograms[:1]])

    (line,) = said(mixed, 1)
    tenths = [float(one) for one in line.partition("by tenths: ")[2].split(", ")]
    assert len(tenths) == 11
    assert tenths[6] < 80 < 140 < tenths[8]


def test_one_value_of_two() -> None:
    assert said(lambda: torch.tensor([[1.0], [0.0]]).repeat(8, 1), 1) == ["targets of the first 160 rows: 1 in 50%"]
