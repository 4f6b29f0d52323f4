"""Targets that go with their rows, and targets of other rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import limpid
from doctor.small_loops import net


def page(x: Tensor, y: Tensor, size: int) -> str:
    """Of a loop over batches of 32."""
    model = net(x.shape[1], 8, size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for rows, targets in zip(x.split(32), y.split(32), strict=True):
            made = model(rows)
            loss = F.mse_loss(made, targets) if y.is_floating_point() else F.cross_entropy(made, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (rows, targets))
    assert dict(doctor.skipped) == {}
    return " ".join(str(doctor.description).split())


@pytest.mark.parametrize("of_other_rows", [False, True])
def test_numbers(of_other_rows: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(640, 3)
    y = x[:, :1] - x[:, 1:2] + 0.5 * torch.randn(640, 1)
    told = page(x, y.roll(1, 0) if of_other_rows else y, 1)
    each = told.split("each column of the input's correlation with the target: ")[1].split(" a linear")[0]
    first, second, third = map(float, each.split())
    explained = float(told.split("of these rows, explains ")[1].split("%")[0])
    if of_other_rows:
        assert max(abs(first), abs(second), abs(third)) < 0.15
        assert abs(explained) < 10
    else:
        assert first == pytest.approx(0.667, abs=0.06)  # 1 / √(1 + 1 + 0.25)
        assert second == pytest.approx(-0.667, abs=0.06)
        assert abs(third) < 0.15
        assert explained == pytest.approx(89, abs=4)


def test_classes() -> None:
    torch.manual_seed(0)
    y = torch.randint(0, 3, (640,))
    x = torch.cat([F.one_hot(y, 3).float() + 0.1 * torch.randn(640, 3), torch.randn(640, 1)], 1)
    told = page(x, y, 3)
    assert "finds the label of 100% of 128 others" in told
    between = [float(one) for one in told.split("lies between labels: ")[1].split(" a linear")[0].split()]
    assert min(between[:3]) > 0.9
    assert between[3] < 0.05
