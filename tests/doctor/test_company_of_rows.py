"""A row's output depends on that row alone, on all of it, and not on its number."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import table, watched


def squared(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(given[0]).flatten(), given[1])


class Normed(nn.Module):
    """A norm by hand, over one axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis, self.one, self.two = axis, nn.Linear(6, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        x = (x - x.mean(self.axis, keepdim=True)) / (x.var(self.axis, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return self.two(x.relu())


class Pooled(nn.Module):
    """Words weighed by a softmax over one axis, with the code of a place that is cut along an axis."""

    def __init__(self, over: int = 1, placed: int = 1, mask: bool = True) -> None:
        super().__init__()
        self.over, self.placed, self.mask = over, placed, mask
        self.tokens, self.places = nn.Embedding(16, 12), nn.Embedding(64, 12)
        self.score, self.head = nn.Linear(12, 1), nn.Linear(12, 3)

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        at = self.places(torch.arange(ids.shape[self.placed]))
        x = self.tokens(ids) + (at if self.placed == 1 else at[:, None])
        score = self.score(x)
        if keep is not None:
            score = score.masked_fill(~(keep if self.mask else ~keep)[..., None], -1e9)
        return self.head((score.softmax(self.over) * x).sum(1))


class Read(nn.Module):
    """A GRU over (row, position, feature), read at its last position."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 8, batch_first=batch_first), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Dropping(nn.Module):
    """Dropout in the course of forward, by the mode or always."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always, self.one, self.two = always, nn.Linear(6, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.dropout(self.one(x).relu(), 0.3, training=self.always or self.training))


class Walked(nn.Module):
    """A cell along the first axis, with outputs of each step or of the last place of what is held for time."""

    def __init__(self, of_steps: bool) -> None:
        super().__init__()
        self.of_steps, self.cell, self.head = of_steps, nn.GRUCell(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        state, states = x.new_zeros(x.shape[1], 8), []
        for step in x:
            state = self.cell(step, state)
            states.append(state)
        made: Tensor = self.head(torch.stack(states) if self.of_steps else torch.stack(states)[:, -1])
        return made.squeeze(-1)


def words() -> tuple[Tensor, Tensor]:
    return torch.randint(0, 16, (12, 9)), torch.randint(0, 3, (12,))


def padded() -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.randint(1, 16, (12, 12))
    sizes = torch.randint(4, 8, (12, 1))
    keep = torch.arange(12) < sizes
    return ids * keep, keep, torch.randint(0, 3, (12,))


def of_class(model: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(*given[:-1]), given[-1])


def sequences() -> tuple[Tensor, Tensor]:
    x = torch.randn(12, 8, 4)
    return x, x[:, :, 0].sum(1)


@pytest.mark.parametrize(
    ("wrong", "right", "batch", "loss", "named"),
    [
        (partial(Normed, 0), partial(Normed, -1), table, squared, {"batch-leaks"}),
        (partial(Pooled, over=0), Pooled, words, of_class, {"batch-leaks"}),
        (partial(Pooled, placed=0), Pooled, words, of_class, {"row-number-counts"}),
        (
            partial(Read, False),
            partial(Read, True),
            sequences,
            squared,
            {"batch-axis-as-time", "batch-leaks", "row-number-counts"},
        ),
        (partial(Dropping, True), partial(Dropping, False), table, squared, {"dropout-in-evaluation"}),
    ],
    ids=["norm over rows", "softmax over rows", "places by row", "time and rows", "always on"],
)
def test_outputs_depend_on_their_row(
    wrong: Callable[[], nn.Module], right: Callable[[], nn.Module], batch: Any, loss: Any, named: set[str]
) -> None:
    torch.manual_seed(0)  # weights that are drawn when tests are collected are others each time
    assert watched(wrong(), batch, loss)[0] in named
    assert watched(right(), batch, loss) == []


def test_all_of_a_row_is_read() -> None:
    torch.manual_seed(0)
    assert "positions-not-read" in watched(Read(False), sequences, squared)
    assert set(watched(Pooled(mask=False), padded, of_class)) & {"positions-not-read", "attention-mask-inverted"}
    assert watched(Pooled(), padded, of_class) == []


@pytest.mark.parametrize("of_steps", [True, False], ids=["steps first", "rows taken for steps"])
def test_the_first_axis_may_be_time(of_steps: bool) -> None:
    """(step, row, feature) with a target for each, as `torch.nn.RNN` has it, or (row, place, feature) with one each."""
    torch.manual_seed(0)
    model = Walked(of_steps)
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(4):
            x = torch.randn(12, 8, 4)
            loss = F.mse_loss(model(x), x[..., 0].cumsum(0) if of_steps else x[..., 0].sum(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, x)
    (found,) = [finding for finding in doctor.findings if finding.rule == "batch-leaks"]
    assert found.meant.startswith("time along the first axis") == of_steps
    assert (found.severity == "fault") != of_steps
