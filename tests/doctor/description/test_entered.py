"""What the first layer with weights is given, rows of padding, and which rows other rows move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import net, table


class Scaled(nn.Module):
    """A network whose inputs are multiplied by a factor, and whose outputs lose their mean over an axis."""

    def __init__(self, factor: float = 1.0, axis: int | None = None) -> None:
        super().__init__()
        self.net, self.factor, self.axis = net(6, 16, 2), factor, axis

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(self.factor * x)
        return y if self.axis is None else y - y.mean(self.axis, keepdim=True)


def page(model: nn.Module) -> list[str]:
    """Of a few steps."""
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x, y = table(32)
            loss = F.mse_loss(model(x)[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
    assert dict(doctor.skipped) == {}
    return [line.text for line in doctor.description.lines if line.part == "model"]


def test_what_a_model_makes_of_its_inputs_is_told() -> None:
    torch.manual_seed(0)
    lines = page(Scaled(1e-4))
    line = next(one for one in lines if "first layer called" in one)
    assert line.startswith("the first layer called, net.0, is given 32 × 6, mean ")
    assert "e-05" in line.partition("deviation")[2] or "0.0001" in line.partition("deviation")[2]
    before = lines[: lines.index(line)]
    assert next(one for one in reversed(before) if one.endswith(":")).endswith("before the first update:")


class Standardised(nn.Module):
    """A network behind a deviation that is kept from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(6, 16, 1)
        self.register_buffer("deviation", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x / self.deviation)
        if self.training:
            self.deviation *= 10
        return y


def test_what_the_layer_is_given_later_is_told_beside_it() -> None:
    torch.manual_seed(0)
    first, later = (one for one in page(Standardised()) if "first layer called" in one)
    assert [float(one.partition("deviation ")[2].partition(",")[0]) for one in (first, later)] == pytest.approx(
        [0.1, 0.001], rel=0.3
    )


def test_nothing_is_told_of_inputs_that_the_layer_is_given_as_they_are() -> None:
    torch.manual_seed(0)
    assert not any("first layer called" in one for one in page(Scaled()))


@pytest.mark.parametrize(("axis", "others"), [(0, "and of 31 of 31 other rows"), (1, "of no other row")])
def test_whether_other_rows_move_with_a_row(axis: int, others: str) -> None:
    torch.manual_seed(0)
    (line,) = (one for one in page(Scaled(axis=axis)) if one.startswith("another "))
    assert line.endswith(others)


@pytest.mark.parametrize(("drawn", "told"), [(False, "is 0"), (True, "is of size ")])
def test_a_row_of_padding_that_is_drawn_like_the_others(drawn: bool, told: str) -> None:
    torch.manual_seed(0)
    tokens = nn.Embedding(9, 6, padding_idx=0)
    if drawn:
        nn.init.normal_(tokens.weight)
    model = nn.Sequential(tokens, nn.Linear(6, 9))
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            ids = torch.randint(0, 9, (8, 5))
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
    (line,) = (one for one in doctor.description.of("model") if "that of padding" in one)
    assert line.startswith(f"row 0 of 0, that of padding, {told}")
