"""What an optimizer held before the first update that was seen, and matrices without a gradient but of rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import net, table


def page(model: nn.Module, optimizer: Any) -> Any:
    """Of three steps."""
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            step(model, optimizer, doctor)
    assert dict(doctor.skipped) == {}
    return doctor.description


def step(model: nn.Module, optimizer: Any, doctor: Any = None) -> None:
    x, y = table(16)
    loss = F.mse_loss(model(x)[:, 0], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if doctor is not None:
        doctor.step(loss, (x, y))


@pytest.mark.parametrize("steps", [0, 5])
def test_moments_and_steps_that_were_there_are_told(steps: int) -> None:
    torch.manual_seed(0)
    model = net(6, 16, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        step(model, optimizer)
    told = [one for one in page(model, optimizer).of("update") if one.startswith("before the first update")]
    if not steps:
        assert told == []
    else:
        (line,) = told
        assert line.startswith("before the first update Adam held step 5, exp_avg (rms ")
        assert line.endswith(", of 4 tensors")


class Looking(nn.Module):
    """Attention over the columns of a row; `summed`: of all values, whatever is attended to."""

    def __init__(self, summed: bool) -> None:
        super().__init__()
        self.inner, self.qkv, self.out = nn.Linear(1, 8), nn.Linear(8, 24), nn.Linear(8, 1)
        self.sums = "bqk,bvd->bqd" if summed else "bqk,bkd->bqd"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(torch.tanh(self.inner(x[..., None]))).chunk(3, -1)
        shares = (q @ k.mT).softmax(-1)
        out: Tensor = self.out(torch.einsum(self.sums, shares, v)).sum(1)
        return out


@pytest.mark.parametrize("summed", [True, False])
def test_queries_and_keys_that_have_no_effect_have_a_gradient_of_rounding_alone(summed: bool) -> None:
    torch.manual_seed(0)
    model = Looking(summed)
    told = page(model, torch.optim.Adam(model.parameters(), lr=1e-3)).of("gradient")
    found = [one for one in told if "as rounding leaves of nothing" in one]
    assert bool(found) is summed
    assert not found or "of the rows of qkv.weight" in found[0]


def test_of_two_optimizers_in_one_step_neither_is_read_after_its_update() -> None:
    torch.manual_seed(0)
    model = net(6, 16, 1)
    parameters = list(model.parameters())
    both: Any = [torch.optim.Adam(parameters[:2], lr=1e-3), torch.optim.Adam(parameters[2:], lr=1e-3)]
    with limpid.watch(model, both, say=False) as doctor:
        for _ in range(3):
            x, y = table(16)
            loss = F.mse_loss(model(x)[:, 0], y)
            model.zero_grad()
            loss.backward()
            for optimizer in both:
                optimizer.step()
            doctor.step(loss, (x, y))
    assert doctor.description is not None
    assert not [one for one in doctor.description.of("update") if one.startswith("before the first update")]
