"""Rates, norms and losses as they went."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import limpid
from limpid.doctor.description.course import Course, fifths
from limpid.doctor.step_record import StepRecord


def test_means_of_fifths() -> None:
    assert fifths([1.0] * 4 + [2.0] * 12 + [5.0] * 4) == "; means of its fifths: 1, 2, 2, 2, 5"
    assert fifths([1.0] * 19) == ""


def test_rates_and_losses_by_step() -> None:
    course = Course()
    for step in range(1, 12):
        course.take(StepRecord(step, loss=float(step), updated=True, rates=[0.1], group_rates={0: step / 10}))
    assert course.rates_of(0).startswith("; at updates 1, 2, ")
    assert course.rates_of(0).endswith("1.1")
    assert course.around([3, 10]) == "; loss before and after: 3 and 4, 10 and 11"
    assert course.around([11]) == ""


def test_the_loss_where_weights_are_set_back() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(1, 25):
            x = torch.randn(16, 4)
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([model.weight], 1.0)
            optimizer.step()
            doctor.step(loss, x)
            if step == 20:
                with torch.no_grad():
                    model.weight.zero_()
    assert dict(doctor.skipped) == {}
    told = " ".join(str(doctor.description).split())
    assert "after step 20" in told
    before, after = map(float, told.split("loss before and after: ")[1].split(" clip")[0].split()[0:3:2])
    assert after > 4 * before
    assert "clipped to 1, but for 1 tensor of 2: bias" in told
