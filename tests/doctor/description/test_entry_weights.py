"""What rows weigh in losses whose weights are known."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import net

Given = dict[str, Tensor]


def page(size: int, batch: Given, loss_of: Callable[[nn.Module, Given], Tensor]) -> str:
    torch.manual_seed(0)
    model = net(4, 8, size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
    assert dict(doctor.skipped) == {}
    return " ".join(str(doctor.description).split())


def rows(classes: int = 2) -> Given:
    torch.manual_seed(1)
    chance = torch.rand(64) * 0.9 + 0.1
    return {"x": torch.randn(64, 4), "chance": chance, "y": torch.arange(64) % classes}


def weighed(told: str) -> str:
    return told.split("what an entry weighs, its gradient over output less target, in parts of the mean: ")[1]


def test_clicks_that_are_divided_by_their_chance() -> None:
    def loss_of(model: nn.Module, given: Given) -> Tensor:
        each = F.binary_cross_entropy_with_logits(model(given["x"])[:, 0], given["y"].float(), reduction="none")
        return (each / given["chance"]).mean()

    assert "the larger the lower chance (rank -1.00)" in weighed(page(1, rows(), loss_of))


def test_classes_that_weigh_what_they_are_given() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0])

    def loss_of(model: nn.Module, given: Given) -> Tensor:
        return F.cross_entropy(model(given["x"]), given["y"], weight=weight)

    said = weighed(page(3, rows(3), loss_of)).split("by target ")[1]
    by = dict(
        one.split(": ") for one in said.split(";")[0].split(" gradient")[0].split(" the update")[0].split(", ")[:3]
    )
    sizes = [float(by[str(k)].split()[0]) for k in range(3)]
    assert abs(sizes[1] / sizes[0] - 2) < 0.05
    assert abs(sizes[2] / sizes[0] - 3) < 0.05


def test_columns_of_a_regression() -> None:
    def loss_of(model: nn.Module, given: Given) -> Tensor:
        return (F.mse_loss(model(given["x"]), given["x"][:, :2], reduction="none") * torch.tensor([1.0, 3.0])).mean()

    assert "by column 0.5 1.5" in weighed(page(2, rows(), loss_of))


def test_nothing_is_said_where_all_weigh_alike() -> None:
    told = page(3, rows(3), lambda model, given: F.cross_entropy(model(given["x"]), given["y"]))
    assert "what an entry weighs" not in told
