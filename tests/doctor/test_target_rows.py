"""Targets that a batch standardises by itself, and targets beside the wrong row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from doctor.small_loops import classes, net, table, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def squared(model: nn.Module, given: Any) -> Tensor:
    return F.mse_loss(model(given[0]).flatten(), given[1])


def standard(y: Tensor) -> Tensor:
    return (y - y.mean()) / y.std()


def test_targets_that_each_batch_standardises() -> None:
    def batch() -> tuple[Tensor, Tensor]:
        x, y = table()
        return x, standard(y)

    def inside(model: nn.Module, given: Any) -> Tensor:
        return F.mse_loss(model(given[0]).flatten(), standard(given[1]))

    assert watched(net(6, 16, 1), batch, squared, 11) == ["targets-standardised-by-batch"]
    assert watched(net(6, 16, 1), table, inside, 11) == ["targets-standardised-by-batch"]


def test_targets_that_the_whole_set_standardises() -> None:
    x, y = table(256)
    y = standard(y)
    order = iter(torch.randperm(256).view(8, 32).repeat(4, 1))

    def batch() -> tuple[Tensor, Tensor]:
        rows = next(order)
        return x[rows], y[rows]

    assert watched(net(6, 16, 1), batch, squared, 11) == []
    assert watched(net(6, 16, 1), lambda: (x, y), squared, 11) == []


def test_returns_that_each_episode_standardises() -> None:
    """Actor and critic: what the critic learns is computed of rewards, and the batch holds none of it."""

    def loss(model: nn.Module, given: Any) -> Tensor:
        returns = given["rewards"].flip(0).cumsum(0).flip(0)
        return F.smooth_l1_loss(model(given["states"]).flatten(), standard(returns))

    assert watched(net(6, 16, 1), lambda: {"states": torch.randn(32, 6), "rewards": torch.rand(32)}, loss, 11) == []


def linear(count: int = 32) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 6)
    return x, x @ torch.tensor([1.0, -2.0, 0.5, 0.0, 1.0, 0.3]) + 0.3 * torch.randn(count)


class Late:
    """Targets of the batch before."""

    def __init__(self) -> None:
        self.last = linear()[1]

    def __call__(self) -> tuple[Tensor, Tensor]:
        x, y = linear()
        late, self.last = self.last, y
        return x, late


def rolled(make: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], tuple[Tensor, Tensor]]:
    def batch() -> tuple[Tensor, Tensor]:
        x, y = make()
        return x, y.roll(1)

    return batch


def test_targets_beside_the_wrong_row() -> None:
    assert watched(net(6, 16, 1), rolled(linear), squared, 12) == ["targets-of-other-rows"]
    assert watched(net(6, 16, 1), Late(), squared, 12) == ["targets-of-other-rows"]
    found = watched(net(3, 16, 3), rolled(classes), lambda m, b: F.cross_entropy(m(b[0]), b[1]), 12)
    assert found == ["targets-of-other-rows"]


def shuffled() -> tuple[Tensor, Tensor]:
    x, y = linear()
    return x, y[torch.randperm(len(y))]


def in_time() -> tuple[Tensor, Tensor]:
    """A slow walk and what comes next."""
    path = torch.randn(33, 6).cumsum(0)
    return path[:-1], path[1:, 0]


@pytest.mark.parametrize("make", [linear, table, shuffled, in_time])
def test_targets_that_are_no_neighbour_s(make: Callable[[], tuple[Tensor, Tensor]]) -> None:
    assert "targets-of-other-rows" not in watched(net(6, 16, 1), make, squared, 40)
