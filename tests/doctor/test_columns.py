"""Columns of inputs: equal, coded, drowned, rounded away; and honest tables that look alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from doctor.small_loops import net, table, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def squared(model: nn.Module, given: Any) -> Tensor:
    return F.mse_loss(model(given[0]).flatten(), given[1])


def changed(change: Callable[[Tensor], Tensor]) -> Callable[[], tuple[Tensor, Tensor]]:
    """Rows whose columns are changed, and the targets of what they were."""

    def batch() -> tuple[Tensor, Tensor]:
        x, y = table()
        return change(x), y

    return batch


TABLES: dict[str, Callable[[Tensor], Tensor]] = {
    "as they are": lambda x: x,
    "one-hot, one never on": lambda x: torch.cat([x, F.one_hot(x[:, 0].sign().long() + 1, 5).float()], 1),
    "padded with zeros": lambda x: F.pad(x, (0, 3)),
    "a column of ones": lambda x: torch.cat([x, torch.ones(len(x), 1)], 1),
    "one number, repeated": lambda x: x[:, :1].expand(-1, 6).contiguous(),
    "repeated twice": lambda x: x.repeat(1, 2),
    "symmetric products": lambda x: (x[:, :3, None] * x[:, None, :3]).flatten(1),
    "cut off at 1": lambda x: x.clamp(max=1.0),
    "half of them 0": lambda x: x.relu(),
    "heavy tails": lambda x: (2 * x).exp(),
    "whole numbers": lambda x: (4 * x).round() + 20,
}


@pytest.mark.parametrize("name", TABLES)
def test_honest_tables(name: str) -> None:
    batch = changed(TABLES[name])
    width = batch()[0].shape[1]
    assert watched(net(width, 16, 1), batch, squared, 12) == []


def test_a_column_that_was_taken_twice() -> None:
    twice = changed(lambda x: torch.cat([x[:, :2], x[:, 1:2], x[:, 3:]], 1))
    assert watched(net(6, 16, 1), twice, squared, 6) == ["columns-equal"]


def missing(x: Tensor, code: float = -999.0) -> Tensor:
    return x.masked_fill(torch.rand_like(x) < 0.15, code)


def test_a_code_that_is_taken_for_a_number() -> None:
    assert watched(net(6, 16, 1), changed(missing), squared, 12)[0] == "codes-among-numbers"


def test_a_code_that_a_column_tells_of() -> None:
    def marked(x: Tensor) -> Tensor:
        x = missing(x)
        return torch.cat([x, (x == -999).float()], 1)

    assert "codes-among-numbers" not in watched(net(12, 16, 1), changed(marked), squared, 12)


class Told(nn.Module):
    """A model that knows the code; `near`: and what lies around it."""

    def __init__(self, near: bool) -> None:
        super().__init__()
        self.net, self.near = net(12, 16, 1), near

    def forward(self, x: Tensor) -> Tensor:
        gone = x < -900 if self.near else x == -999
        return self.net(torch.cat([x.masked_fill(gone, 0.0), gone.float()], 1))


@pytest.mark.parametrize("near", [True, False])
def test_a_code_that_the_model_knows(near: bool) -> None:
    assert watched(Told(near), changed(missing), squared, 12) == []


SCALES = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 3000.0])


def test_a_column_that_drowns_the_others() -> None:
    assert "column-drowns-others" in watched(net(6, 16, 1), changed(lambda x: x * SCALES), squared)
    inside = nn.Sequential(nn.BatchNorm1d(6), net(6, 16, 1))
    assert watched(inside, changed(lambda x: x * SCALES), squared) == []


def test_times_in_a_format_that_cannot_tell_them_apart() -> None:
    def stamped(x: Tensor, offset: float) -> Tensor:
        return torch.cat([x[:, :5], (1000 * x[:, 5:].double() / 4 + offset).float()], 1)

    class Scaled(nn.Module):
        def __init__(self, offset: float) -> None:
            super().__init__()
            self.net, self.offset = net(6, 16, 1), offset

        def forward(self, x: Tensor) -> Tensor:
            return self.net(torch.cat([x[:, :5], (x[:, 5:] - self.offset) / 250], 1))

    assert watched(Scaled(1.7e9), changed(lambda x: stamped(x, 1.7e9)), squared, 4) == ["inputs-too-coarse"]
    assert watched(Scaled(1e6), changed(lambda x: stamped(x, 1e6)), squared, 4) == []
