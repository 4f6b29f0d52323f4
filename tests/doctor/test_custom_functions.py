"""Wrong backward passes by hand before the first step: named; right ones and those that are meant so are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.custom_functions import deliberate, right, wrong
from benchmarks.custom_functions.__main__ import ON_PURPOSE
from benchmarks.custom_functions.steps import LENGTH, NAMES, ROWS, WIDTH, net_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import limpid
from limpid.adjoints import declared
from limpid.doctor import Doctor, Finding

RULE = "backward-not-adjoint"


def found(net: nn.Module, rules: list[str] | None = None) -> list[Finding]:
    """What is said before the first step; the model and its gradients stay as they were."""
    before = {name: one.clone() for name, one in net.state_dict().items()}
    doctor = Doctor(net, torch.optim.SGD(net.parameters(), lr=0.1), rules=rules)
    batch = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    doctor.preflight(batch, loss=lambda model, batch: model(batch).square().mean())
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    return [one for one in doctor.findings if one.rule == RULE]


@pytest.mark.parametrize("name", NAMES)
def test_each_wrong_one_is_named_and_no_right_one(name: str) -> None:
    assert found(net_of(right, name, 0), [RULE]) == []
    [one] = found(net_of(wrong, name, 0), [RULE])
    assert one.where == f"{name} in use"
    assert one.severity == "notice"
    assert bool(one.meant) == (name not in ("Chunked", "LayerNorm", "Gelu"))  # which are hardly off


@pytest.mark.parametrize("name", [name for name in ON_PURPOSE if name != "Kept"])
def test_another_gradient_on_purpose_is_not_accused(name: str) -> None:
    assert found(net_of(deliberate, name, 0)) == []


def test_one_that_is_declared_is_said_with_its_size_and_not_accused() -> None:
    net = net_of(deliberate, "Kept", 0)
    assert [one.where for one in found(net, [RULE])] == ["Kept in use"]
    limpid.surrogate(deliberate.Kept, why="errors are kept as they are")
    try:
        doctor = Doctor(net, torch.optim.SGD(net.parameters(), lr=0.1))
        batch = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
        doctor.preflight(batch, loss=lambda model, batch: model(batch).square().mean())
    finally:
        del declared.FUNCTIONS[deliberate.Kept]
    assert not [one for one in doctor.findings if one.rule in (RULE, "gradient-is-not-the-gradient")]
    assert "declared: errors are kept as they are" in doctor.skipped[f"{RULE} of Kept"]


def test_checkpoints_and_hooks_on_gradients_are_not_accused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Any:
            x = checkpoint(lambda given: right.Gelu.apply(self.first(given)), x, use_reentrant=False)
            x.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
            return checkpoint(lambda given: right.Gelu.apply(self.last(given)), x, use_reentrant=True)

    net = Net()
    net.first.weight.register_hook(lambda gradient: gradient * 0.5)
    assert found(net) == []


@pytest.mark.parametrize("name", ["Gelu", "LayerNorm", "Silu", "Softmax"])
def test_a_loop_without_preflight_is_looked_at_too(name: str) -> None:
    for kind, count in ((wrong, 1), (right, 0)):
        net = net_of(kind, name, 0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        doctor = Doctor(net, optimizer, say=False)
        for seed in range(3):
            batch = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed))
            loss = net(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
        assert len([one for one in doctor.findings if one.rule == RULE]) == count
        assert dict(doctor.skipped) == {}


def test_the_gradients_of_a_loop_are_those_without_a_doctor() -> None:
    ends = []
    for watching in (True, False):
        torch.manual_seed(0)
        net = net_of(wrong, "Gelu", 0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        doctor = Doctor(net, optimizer, say=False) if watching else None
        for seed in range(3):
            batch = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed))
            loss = net(batch + 0.1 * torch.randn_like(batch)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if doctor is not None:
                doctor.step(loss, batch)
        ends.append([p.detach().clone() for p in net.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
