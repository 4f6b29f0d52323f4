"""Outputs beside targets, and batches over the run, in loops whose numbers are known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import net


class Same(nn.Module):
    """Returns its first columns, times a weight of one."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns, self.scale = columns, nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.columns] * self.scale


def page(model: nn.Module, batches: list[tuple[Tensor, Tensor]], kind: str) -> str:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for x, y in batches:
            made = model(x)
            loss = F.cross_entropy(made, y) if kind == "classes" else F.mse_loss(made, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
    assert dict(doctor.skipped) == {}
    return " ".join(str(doctor.description).split())


def test_targets_above_their_outputs() -> None:
    x = torch.randn(3, 8, 1)
    y = x + torch.tensor([1.0, 1, 1, 1, 1, 1, -2, -2])[:, None]
    told = page(Same(1), list(zip(x, y, strict=True)), "numbers")
    assert "targets are above in 75% of the rows, target less output 0.25 in the mean" in told
    assert "it gives in this step 8 × 1, mean" in told


def test_classes_that_are_right() -> None:
    x = torch.eye(4).repeat(2, 1).repeat(3, 1, 1)
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 3, 2])
    told = page(Same(4), [(one, labels) for one in x], "classes")
    assert "the label has the largest output in 75% of 8 rows" in told


@pytest.mark.parametrize("by_itself", [True, False])
def test_batches_that_are_each_set_to_mean_0(by_itself: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(20, 8, 3) * 2 + 1
    x = (x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True, correction=0) if by_itself else x
    told = page(net(3, 8, 1), [(one, one.sum(1, keepdim=True)) for one in x], "numbers")
    between = told.split("inputs of 20 batches: the mean of a batch lies between ")[1].split(", its deviation")[0]
    low, high = map(float, between.split(" and "))
    assert (high - low < 1e-6) == by_itself


def test_what_a_second_pass_is_given() -> None:
    torch.manual_seed(0)
    model = net(3, 8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x = torch.randn(8, 3)
            loss = (
                F.mse_loss(model(x), model(x.flip(0)).detach()) + model(x + 0.1 * torch.randn_like(x)).square().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, x)
    told = "\n".join(doctor.description.of("data")) if doctor.description is not None else ""
    assert "forward pass 2, input: the rows of what pass 1 is given, in another order" in told
    assert "correlation 0.99" in told.split("forward pass 3")[1]


@pytest.mark.parametrize("shared", [0, 1, 3])
def test_rows_that_two_passes_share(shared: int) -> None:
    torch.manual_seed(0)
    model = net(3, 8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x, other = torch.randn(8, 3), torch.randn(8, 3)
            other[2 : 2 + shared] = x[:shared]
            loss = model(x).square().mean() + model(other).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, x)
    told = "\n".join(doctor.description.of("data")) if doctor.description is not None else ""
    which = {0: "none of its rows is", 1: "1 of its rows is", 3: "3 of its rows are"}[shared]
    assert f"{which} among what pass 1 is given" in told.split("forward pass 2")[1]
