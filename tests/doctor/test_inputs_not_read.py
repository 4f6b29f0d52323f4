"""Columns and tensors that no output depends on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from doctor.small_loops import net, table, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def squared(model: nn.Module, given: Any) -> Tensor:
    return F.mse_loss(model(*given[:-1]).flatten(), given[-1])


class Sliced(nn.Module):
    """The first columns alone."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns, self.net = columns, net(columns, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x[:, : self.columns])


def numbered() -> tuple[Tensor, Tensor]:
    """A last column that says which row of the data it is."""
    x, y = table()
    return torch.cat([x, torch.randint(0, 999, (len(x), 1)).float()], 1), y


def test_a_column_that_is_sliced_away() -> None:
    assert watched(Sliced(5), table, squared) == ["column-not-read"]
    assert watched(Sliced(6), table, squared) == []
    assert watched(Sliced(6), numbered, squared) == []


class Masked(nn.Module):
    """Each number from those before it, as in autoregressive densities: the last is read by none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) / 6)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.tril(-1).T


class Late(nn.Module):
    """A head that begins at 0: no output depends on anything yet."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(6, 16, 1)
        nn.init.zeros_(self.net[-1].weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_models_that_leave_columns_aside_on_purpose() -> None:
    assert watched(Masked(), table, lambda m, b: F.mse_loss(m(b[0]), b[0])) == []
    assert "column-not-read" not in watched(Late(), table, squared)


class TwoParts(nn.Module):
    """Two tables; `second`: whether the other is added. It begins at 0 where it is."""

    def __init__(self, second: bool) -> None:
        super().__init__()
        self.one, self.other, self.second = net(6, 16, 1), nn.Linear(4, 1), second
        nn.init.zeros_(self.other.weight)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        added = self.other(context)
        return self.one(x) + (added if self.second else 0 * added.detach().sum())


@pytest.mark.parametrize("second", [True, False])
def test_a_tensor_that_is_not_added(second: bool) -> None:
    def batch() -> tuple[Tensor, Tensor, Tensor]:
        x, y = table()
        return x, torch.randn(len(x), 4), y

    assert ("tensor-not-read" in watched(TwoParts(second), batch, squared, 12)) != second


def test_a_mask_may_be_left_aside() -> None:
    def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, y = table()
        return x, torch.randn(len(x), 4), torch.rand(len(x), 4).round(), y

    assert watched(TwoParts(True), batch, squared, 12) == []


class Words(nn.Module):
    """The first word of each row, beside what the model was told of each place or of each row, if `told` is read."""

    def __init__(self, told: bool) -> None:
        super().__init__()
        self.table, self.head, self.told = nn.Embedding(16, 8), nn.Linear(9, 1), told

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        share = keep.float().flatten(1).mean(1, keepdim=True)
        return self.head(torch.cat([self.table(ids[:, 0]), share if self.told else 0 * share], 1))


@pytest.mark.parametrize(("places", "told"), [(True, False), (False, False), (False, True)])
def test_yes_and_no_for_each_token_is_a_mask_whatever_its_name(places: bool, told: bool) -> None:
    def batch() -> tuple[Tensor, Tensor, Tensor]:
        keep = torch.rand(16, 6) < 0.5 if places else torch.rand(16, 1) < 0.5
        return torch.randint(0, 16, (16, 6)), keep, torch.randn(16)

    assert ("tensor-not-read" in watched(Words(told), batch, squared, 12)) == (not places and not told)
