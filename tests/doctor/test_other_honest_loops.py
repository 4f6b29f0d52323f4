"""More established practice that was accused once: policies, values, margins, whole data, optimizers of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.optimization import Adafactor

import limpid

Step = Callable[[], tuple[Tensor, Any]]


def alarms(model: nn.Module, optimizer: Any, steps: Iterator[tuple[Tensor, Any]]) -> list[str]:
    """What is said of a loop; each step gives its loss, after the update, and its batch."""
    with limpid.watch(model, optimizer, say=False) as doctor:
        for loss, given in steps:
            doctor.step(loss, given)
    return [one.rule for one in doctor.findings if one.is_said]


def updated(optimizer: Any, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def table(outputs: int, width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(12, width), nn.Flatten(), nn.Linear(width, outputs))


def test_an_optimizer_that_finds_its_own_rate() -> None:
    model = table(5)
    optimizer = Adafactor(model.parameters(), relative_step=True, scale_parameter=True, warmup_init=False, lr=None)

    def steps() -> Iterator[tuple[Tensor, Any]]:
        for _ in range(12):
            ids = torch.randint(0, 12, (32, 1))
            yield updated(optimizer, F.cross_entropy(model(ids), ids[:, 0] % 5)), (ids, ids[:, 0] % 5)

    assert alarms(model, optimizer, steps()) == []


def test_values_of_actions_are_no_logits() -> None:
    model = table(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def steps() -> Iterator[tuple[Tensor, Any]]:
        for _ in range(12):
            state, action = torch.randint(0, 12, (64, 1)), torch.randint(0, 4, (64, 1))
            value = model(state).gather(1, action)[:, 0]
            yield updated(optimizer, F.smooth_l1_loss(value, (state + action)[:, 0] / 3)), state

    assert alarms(model, optimizer, steps()) == []


def test_a_margin_that_all_rows_keep_has_no_gradient() -> None:
    model = table(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def steps() -> Iterator[tuple[Tensor, Any]]:
        for _ in range(12):
            ids = torch.randint(0, 12, (16, 1))
            yield updated(optimizer, F.relu(model(ids).square().sum(1) - 1e6).mean()), ids

    assert alarms(model, optimizer, steps()) == []


@pytest.mark.parametrize("frozen", [True, False])
def test_gradients_that_are_written_by_hand_and_weights_that_are_frozen_while_sampling(frozen: bool) -> None:
    model = table(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def steps() -> Iterator[tuple[Tensor, Any]]:
        for _ in range(6):
            ids = torch.randint(0, 12, (16, 1))
            model.requires_grad_(False)
            loss = model(ids).square().mean()
            if frozen:
                for parameter in model.parameters():
                    parameter.grad = torch.randn_like(parameter)
                optimizer.step()
            else:
                model.requires_grad_(True)
                updated(optimizer, model(ids).square().mean())
            yield loss, ids

    assert alarms(model, optimizer, steps()) == []


class Talker(nn.Module):
    """The next token by a recurrent network, whose state may be carried on."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cells, self.head = nn.Embedding(10, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, ids: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        states, state = self.cells(self.table(ids), state)
        return self.head(states), state


@pytest.mark.parametrize("cached", [True, False])
def test_answers_that_the_policy_draws_change_as_it_learns(cached: bool) -> None:
    """Equal answers in a batch, and tokens that become frequent, are what a policy does."""
    torch.manual_seed(0)
    model = Talker()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=0.0)

    def drawn() -> Tensor:
        ids, state = torch.zeros(24, 1, dtype=torch.long), None
        with torch.no_grad():
            for _ in range(5):
                logits, state = model(ids[:, -1:] if cached else ids, state if cached else None)
                ids = torch.cat([ids, torch.multinomial(logits[:, -1].softmax(-1), 1)], 1)
        return ids

    def steps() -> Iterator[tuple[Tensor, Any]]:
        for _ in range(60):
            ids = drawn()
            gained = (ids == 7).float().mean(1)
            gained = (gained - gained.mean()) / (gained.std() + 1e-3)
            spoken = -F.cross_entropy(model(ids[:, :-1])[0].transpose(1, 2), ids[:, 1:], reduction="none").sum(1)
            yield updated(optimizer, -(gained * spoken).mean()), ids

    assert not {"data-sorted", "rows-duplicated", "batch-repeats"} & set(alarms(model, optimizer, steps()))


@pytest.mark.parametrize(("count", "length", "spoken"), [(45, 12, []), (32, 12, ["batch-repeats"]), (32, 2, [])])
def test_all_the_data_at_each_step_and_rows_that_are_all_there_can_be(
    count: int, length: int, spoken: list[str]
) -> None:
    """45 rows are the data; 32 may be a batch that comes again; of two digits there are 25 rows and no more."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 16), nn.Linear(16, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    kept = torch.randint(0, 5, (count, length))

    def steps() -> Iterator[tuple[Tensor, Any]]:
        for _ in range(40):
            ids = torch.randint(0, 5, (count, length)) if length == 2 else kept.clone()
            yield updated(optimizer, F.cross_entropy(model(ids).flatten(0, 1), (ids.cumsum(1) % 5).flatten())), ids

    assert [rule for rule in alarms(model, optimizer, steps()) if rule == "batch-repeats"] == spoken


class Windows(nn.Module):
    """Classes of windows of numbers; `along` is the axis that is read."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(3, 12, batch_first=batch_first), nn.Linear(12, 4)

    def forward(self, windows: Tensor) -> Tensor:
        out: Tensor = self.head(self.cells(windows)[0].mean(1))
        return out


@pytest.mark.parametrize(("batch_first", "spoken"), [(True, []), (False, ["batch-axis-as-time", "batch-leaks"])])
def test_who_reads_along_the_rows_mixes_them(batch_first: bool, spoken: list[str]) -> None:
    torch.manual_seed(0)
    model = Windows(batch_first)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def steps() -> Iterator[tuple[Tensor, Any]]:
        for _ in range(4):
            windows = torch.randn(8, 10, 3)
            classes = windows.sum((1, 2)).long() % 4
            yield updated(optimizer, F.cross_entropy(model(windows), classes)), (windows, classes)

    assert alarms(model, optimizer, steps()) == spoken
