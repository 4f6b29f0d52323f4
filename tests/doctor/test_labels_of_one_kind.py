"""Labels that are true for every row, and labels that happen to be alike for a while."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import limpid
from doctor.small_loops import alarms, net


def said(share: float, dtype: Any = torch.bool, sorted_by: bool = False, as_list: bool = False, size: int = 32) -> bool:
    """Whether it is found; `share` of the rows are true."""
    torch.manual_seed(0)
    model = net(6, 16, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(30):
            x, y = torch.randn(size, 6), torch.rand(size) < share
            y = torch.full_like(y, step < 8) if sorted_by else y
            loss = F.binary_cross_entropy_with_logits(model(x).flatten(), y.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, {"x": x, "labels": y.tolist() if as_list else y.to(dtype)})
    assert dict(doctor.skipped) == {}
    return "labels-of-one-kind" in alarms(doctor)


@pytest.mark.parametrize("as_list", [False, True])
def test_every_row_is_true(as_list: bool) -> None:
    assert said(1.0, as_list=as_list)


def test_both_kinds_are_there() -> None:
    assert not said(0.5)
    assert not said(0.9)


def test_a_few_rows_of_one_kind_prove_nothing() -> None:
    assert not said(1.0, size=4)


def test_numbers_may_be_constant() -> None:
    assert not said(1.0, dtype=torch.float32)
