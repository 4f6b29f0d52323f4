"""Targets that are probabilities, and labels of a batch beside what is taught."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import classes, net


def page(loss: Callable[[nn.Module, Tensor, Tensor], Tensor], label: Callable[[Tensor], Tensor] = lambda y: y) -> str:
    torch.manual_seed(0)
    model = net(3, 16, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x, y = classes(24)
            y = label(y)
            value = loss(model, x, y)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            doctor.step(value, (x, y))
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    return "\n".join(doctor.description.of("labels"))


@pytest.mark.parametrize("by", ["cross_entropy", "kl_div"])
@pytest.mark.parametrize("turned", [False, True])
def test_probabilities_beside_the_labels(by: str, turned: bool) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        target = 0.9 * F.one_hot(y.roll(1) if turned else y, 3) + 0.1 / 3
        if by == "cross_entropy":
            return F.cross_entropy(model(x), target)
        return F.kl_div(model(x).log_softmax(1), target, reduction="batchmean")

    told = page(loss)
    assert "targets are probabilities: their entropy is 0.291 nats, that of what is held against them " in told
    assert ("the likeliest class of a target is the batch's label there in 100% of 24" in told) is not turned
    assert "(0.93), " in told


@pytest.mark.parametrize("counts", ["from 0", "from 1"])
def test_classes_that_are_never_taught(counts: str) -> None:
    """Labels that count from 1 leave out the first of so many classes."""
    told = page(lambda model, x, y: F.cross_entropy(model(x), (y + (counts == "from 1")).clamp(max=2)))
    assert ("never taught, in 72 labels: class 0" in told) is (counts == "from 1")


@pytest.mark.parametrize("sorts", [False, True])
def test_rows_that_are_sorted_and_labels_that_are_not(sorts: bool) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y[x[:, 0].argsort()] if sorts else y)

    told = page(loss)
    assert ("the labels that are taught are the batch's in another order: " in told) is sorts


@pytest.mark.parametrize("left_out", [False, True])
def test_labels_that_no_class_has(left_out: bool) -> None:
    def label(y: Tensor) -> Tensor:
        return torch.where(torch.arange(24) < 6, -1, y)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y if left_out else y % 3, ignore_index=-1)

    told = page(loss, label)
    line = "labels of the batch that are no class (-1) are taught, as class 2: 6 of 24 labels, 25.0% of the weight"
    assert (line in told.replace("25%", "25.0%")) is not left_out


@pytest.mark.parametrize("back", [False, True])
def test_rows_that_a_model_sorts(back: bool) -> None:
    """As packed sequences are: what comes out is to be put back into the order of what came in."""

    class Sorts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net(3, 16, 3)

        def forward(self, x: Tensor) -> Tensor:
            order = x[:, 0].argsort()
            made: Tensor = self.net(x[order])
            return made[order.argsort()] if back else made

    torch.manual_seed(0)
    model = Sorts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            x, y = classes(24)
            value = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            doctor.step(value, (x, y))
    assert doctor.description is not None
    told = "\n".join(doctor.description.of("model"))
    assert (
        "the same rows in another order, each one row further down in the batch, have other outputs, up to " in told
    ) is not back
