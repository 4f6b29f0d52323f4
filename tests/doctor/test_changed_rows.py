"""Data that is written to as it is read, and augmentations that are made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from doctor.small_loops import net, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def epochs(width: int, change: Callable[[Tensor, Tensor, int], Tensor], by_class: bool) -> Iterator[Any]:
    """Shuffled batches of 96 rows, each changed by what is done to the data at these rows in this epoch."""
    data = torch.randn(96, width)
    target = data[:, 0] + 0.5 * data[:, 1] if not by_class else (data[:, 0] > 0).long()
    for epoch in range(1000):
        for rows in torch.randperm(96).view(6, 16):
            yield change(data, rows, epoch), target[rows]


def noisy_in_place(data: Tensor, rows: Tensor, epoch: int) -> Tensor:
    data[rows] += 0.2 * torch.randn(len(rows), data.shape[1])
    return data[rows]


def scaled_in_place(data: Tensor, rows: Tensor, epoch: int) -> Tensor:
    data[rows] = (data[rows] - 0.1) / 0.9
    return data[rows]


def noisy(data: Tensor, rows: Tensor, epoch: int) -> Tensor:
    return data[rows] + 0.2 * torch.randn(len(rows), data.shape[1])


def more_noise(data: Tensor, rows: Tensor, epoch: int) -> Tensor:
    return data[rows] + 0.1 * epoch * torch.randn(len(rows), data.shape[1])


def seldom_noisy(data: Tensor, rows: Tensor, epoch: int) -> Tensor:
    return data[rows] + 0.2 * torch.randn(len(rows), data.shape[1]) * (torch.rand(len(rows), 1) < 0.5)


def brighter(data: Tensor, rows: Tensor, epoch: int) -> Tensor:
    return data[rows] * (1 + 0.2 * torch.randn(len(rows), 1)) + 0.1 * torch.randn(len(rows), 1)


def cut_off(data: Tensor, rows: Tensor, epoch: int) -> Tensor:
    data[rows] = data[rows].clamp(-2, 2)
    return data[rows]


def as_it_is(data: Tensor, rows: Tensor, epoch: int) -> Tensor:
    return data[rows]


def drifting(data: Tensor, rows: Tensor, epoch: int) -> Tensor:
    return data[rows] * (1 + 0.1 * epoch) + torch.sin(data[rows] * epoch)


def loop(width: int, change: Callable[[Tensor, Tensor, int], Tensor], by_class: bool) -> list[str]:
    batches = epochs(width, change, by_class)

    def loss(model: nn.Module, given: Any) -> Tensor:
        out = model(given[0])
        return F.cross_entropy(out, given[1]) if by_class else F.mse_loss(out.flatten(), given[1])

    return watched(net(width, 16, 2 if by_class else 1), lambda: next(batches), loss, 36)


@pytest.mark.parametrize("change", [noisy_in_place, scaled_in_place])
@pytest.mark.parametrize(("width", "by_class"), [(6, False), (40, True), (40, False)])
def test_data_that_is_written_to(change: Callable[[Tensor, Tensor, int], Tensor], width: int, by_class: bool) -> None:
    assert loop(width, change, by_class) == ["data-changed-in-place"]


@pytest.mark.parametrize("change", [noisy, more_noise, seldom_noisy, brighter, cut_off, as_it_is, drifting])
@pytest.mark.parametrize(("width", "by_class"), [(6, False), (40, True)])
def test_data_that_is_augmented(change: Callable[[Tensor, Tensor, int], Tensor], width: int, by_class: bool) -> None:
    assert loop(width, change, by_class) == []
