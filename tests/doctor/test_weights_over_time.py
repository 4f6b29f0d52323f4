"""Weights that are put back, averages at another scale, tensors that never leave 0."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import alarms, net, table, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def squared(model: nn.Module, given: Any) -> Tensor:
    return F.mse_loss(model(given[0]).flatten(), given[1])


def trained(model: nn.Module, optimizer: Any, between: Any, steps: int = 60, evaluated: Any = None) -> list[str]:
    """The alarms of a loop that does something before each step, and something else in evaluations."""
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(steps):
            between(step)
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
            if evaluated is not None:
                evaluated(step)
    assert dict(doctor.skipped) == {}
    return alarms(doctor)


@pytest.mark.parametrize("inside", [True, False])
def test_a_checkpoint_that_is_loaded_at_each_epoch(inside: bool) -> None:
    model = net(6, 16, 1)
    saved = copy.deepcopy(model.state_dict())

    def load(step: int) -> None:
        if step % 15 == 0 and (inside or step == 0):
            model.load_state_dict(saved)

    found = trained(model, torch.optim.AdamW(model.parameters(), 1e-2), load)
    assert found == (["weights-put-back"] if inside else [])


def test_trials_that_each_begin_anew() -> None:
    """Hyperparameters that are tried one after another: weights and optimizer both go back."""
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    saved, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())

    def load(step: int) -> None:
        if step % 15 == 0:
            model.load_state_dict(saved)
            optimizer.load_state_dict(state)

    assert trained(model, optimizer, load) == []


def test_tasks_that_are_adapted_to_from_the_same_weights() -> None:
    """Reptile: after each task the weights go on from a mean of where the task began and where it ended."""
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    start: dict[str, Tensor] = copy.deepcopy(model.state_dict())

    def outer(step: int) -> None:
        if step % 5 == 0 and step:
            start.update({name: start[name] + 0.5 * (w - start[name]) for name, w in model.state_dict().items()})
            model.load_state_dict(start)

    assert trained(model, optimizer, outer) == []


def test_a_rollback_that_lowers_the_rate() -> None:
    model = net(6, 16, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    saved = copy.deepcopy(model.state_dict())

    def back(step: int) -> None:
        if step in (15, 30):
            model.load_state_dict(saved)
            optimizer.param_groups[0]["lr"] /= 2

    assert trained(model, optimizer, back) == []


@pytest.mark.parametrize("kind", ["from 0", "corrected", "from the weights", "sum", "eight bits"])
def test_an_average_lies_among_what_it_is_of(kind: str) -> None:
    model = net(6, 16, 1)
    average = [p.detach().clone() * (kind == "from the weights") for p in model.parameters()]

    def evaluate(step: int) -> None:
        for a, p in zip(average, model.parameters(), strict=True):
            a.mul_(1.0 if kind == "sum" else 0.98).add_(p.detach(), alpha=1.0 if kind == "sum" else 0.02)
        if step % 20 == 19:
            own = [p.detach().clone() for p in model.parameters()]
            scale = 1 - 0.98 ** (step + 1) if kind == "corrected" else 1.0
            with torch.no_grad():
                for p, a in zip(model.parameters(), average, strict=True):
                    rounded = (p * 127 / p.abs().max()).round() * p.abs().max() / 127
                    p.copy_(rounded if kind == "eight bits" else a / scale)
                model.eval()(table()[0])
                model.train()
                for p, w in zip(model.parameters(), own, strict=True):
                    p.copy_(w)

    found = trained(model, torch.optim.Adam(model.parameters(), 2e-3), lambda step: None, 80, evaluate)
    assert found == (["average-off-scale"] if kind in ("from 0", "sum") else [])


class Gained(nn.Module):
    """Layers with a gain each; in a product of two factors."""

    def __init__(self, first: float, second: float) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 1)
        self.a, self.b = nn.Parameter(torch.full((1, 16), first)), nn.Parameter(torch.full((1, 16), second))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.into(x)).relu()
        return self.out(hidden + hidden * self.a * self.b)


@pytest.mark.parametrize("both", [True, False])
def test_two_factors_at_zero(both: bool) -> None:
    found = watched(Gained(0.0, 0.0 if both else 1.0), table, squared, 61)
    assert ("zero-and-stays" in found) == both
