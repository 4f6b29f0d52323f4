"""Gradients that are made elsewhere, and those that are 0 while weights leave 0: nothing is said of them."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import alarms, classes, net, table


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("own_pass", [False, True])
def test_passes_of_copies_add_nothing_to_gradients_that_are_left(own_pass: bool) -> None:
    """Differences of weights that are written into `.grad`; with a pass of the model itself, one adds to another."""
    model = net(6, 16, 1)
    outer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with limpid.watch(model, outer, say=False) as doctor:
        for _ in range(6):
            worker = copy.deepcopy(model)
            inner = torch.optim.SGD(worker.parameters(), lr=0.1)
            x, y = table()
            for _ in range(3):
                loss = F.mse_loss(worker(x)[:, 0], y)
                inner.zero_grad()
                loss.backward()
                inner.step()
            if own_pass:
                F.mse_loss(model(x)[:, 0], y).backward()
            else:
                for own, gone in zip(model.parameters(), worker.parameters(), strict=True):
                    own.grad = (own - gone).detach()
            outer.step()
            doctor.step(loss, (x, y))
    assert ("gradients-not-cleared" in alarms(doctor)) == own_pass


class Mixed(nn.Module):
    """Layers that read a mixture of their input and its norm, by learned shares; matrices start at 0, as of RWKV."""

    def __init__(self, dead: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, 16), nn.Linear(16, 3)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.keys = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.values = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(2))
        self.act: nn.Module = nn.ReLU() if dead else nn.Softplus()
        self.shares = nn.Parameter(torch.linspace(0, 1, 16).repeat(2, 1))
        for key, value in zip(self.keys, self.values, strict=True):
            assert isinstance(key, nn.Linear)
            assert isinstance(value, nn.Linear)
            if dead:
                nn.init.constant_(key.bias, -100.0)
            else:
                nn.init.zeros_(key.weight)
                nn.init.zeros_(key.bias)
                nn.init.zeros_(value.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for norm, key, value, share in zip(self.norms, self.keys, self.values, self.shares, strict=True):
            out = key(norm(x) * share + x * (1 - share))
            x = x + value(self.act(out))
        out: Tensor = self.leave(x)
        return out


@pytest.mark.parametrize("dead", [False, True])
def test_what_waits_for_weights_that_start_at_0_is_not_cut_off(dead: bool) -> None:
    model = Mixed(dead)
    with limpid.watch(model, torch.optim.AdamW(model.parameters(), lr=1e-2), say=False) as doctor:
        doctor.preflight(classes(), loss=lambda m, given: F.cross_entropy(m(given[0]), given[1]))
    said = {one.rule for one in doctor.findings if one.severity != "notice"}
    assert ("gradient-cut" in said) == dead
    assert "initialisation-degenerate" not in said
