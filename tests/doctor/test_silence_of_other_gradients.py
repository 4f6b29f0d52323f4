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


@pytest.mark.parametrize("cut", [False, True])
def test_a_hook_that_sums_gradients_elsewhere_cuts_nothing(cut: bool) -> None:
    """As main_grad of Megatron-LM (Narayanan et al. 2021) is formed: no weight of the model keeps a gradient."""
    model = net(6, 16, 1)
    masters = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
    sums = [torch.zeros_like(one) for one in masters]
    optimizer = torch.optim.AdamW(masters, lr=1e-2)

    def taken(weight: Tensor, total: Tensor) -> None:
        assert weight.grad is not None
        total += weight.grad
        weight.grad = None

    for weight, total in zip(model.parameters(), sums, strict=True):
        if not cut:
            weight.register_post_accumulate_grad_hook(lambda p, total=total: taken(p, total))
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(24):
            x, y = table()
            made = model(x)[:, 0]
            loss = F.mse_loss(made.detach().requires_grad_() if cut else made, y)
            loss.backward()
            for master, total in zip(masters, sums, strict=True):
                master.grad = total
            optimizer.step()
            with torch.no_grad():
                for weight, master in zip(model.parameters(), masters, strict=True):
                    weight.copy_(master)
            doctor.step(float(loss.detach()), (x, y))
            for total in sums:
                total.zero_()
    assert ("gradient-cut" in alarms(doctor)) == cut


@pytest.mark.parametrize("rises", [False, True])
def test_a_gradient_that_grows_while_the_loss_falls_is_asked_about(rises: bool) -> None:
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(64):
            x, _ = table()
            times = 1.0 if step < 50 else 20.0
            loss = (10 + model(x).square().mean()) * times if rises else 100 - step - model(x).mean() * times
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, x)
    found = [one for one in doctor.findings if one.rule == "gradient-explodes"]
    assert [(bool(one.meant), one.severity) for one in found] == [(False, "warning") if rises else (True, "notice")]
