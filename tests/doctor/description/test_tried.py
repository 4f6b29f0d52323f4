"""What the doctor's own passes show of a model before the first update, and again when the page is asked for."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid

WORDS, WIDTH = 11, 16


class Mixed(nn.Module):
    """One mixing of all earlier tokens, behind a gate that is closed at first (Zhang et al. 2019); causal or not."""

    def __init__(self, causal_until: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.mix, self.gate, self.drop = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.zeros(1)), nn.Dropout(0.2)
        self.causal_until, self.steps = causal_until, 0

    def forward(self, ids: Tensor) -> Tensor:
        if self.steps < 0:
            raise RuntimeError("closed")
        x = self.words(ids)
        past = torch.ones(ids.shape[1], ids.shape[1])
        past = past.tril() if self.steps < self.causal_until else past
        made: Tensor = self.head(self.drop(x + self.gate * (past / past.sum(1, keepdim=True)) @ self.mix(x)))
        return made


def trained(model: Mixed, asked_every_step: bool = False) -> tuple[Any, Tensor]:
    """The doctor of some steps, and a number drawn after them."""
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(8):
            ids = torch.randint(0, WORDS, (8, 13))
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
            model.steps += 1
            if asked_every_step:
                assert doctor.description is not None
    return doctor, torch.rand(3)


def lines(doctor: Any) -> list[str]:
    """Those that are said of a token in the middle, in their order."""
    return [line for line in doctor.description.of("model") if "at position 6 of row 0" in line]


def test_what_a_closed_gate_hides_at_first_is_told_once_it_is_open() -> None:
    torch.manual_seed(0)
    doctor, _ = trained(Mixed(causal_until=100))
    first, again = lines(doctor)
    assert "moves the outputs at 6 of 12" in first
    assert "moves the outputs at 6 to 11 of 12" in again
    assert dict(doctor.skipped) == {}


def test_a_mask_that_is_lost_on_the_way_is_told() -> None:
    torch.manual_seed(0)
    doctor, _ = trained(Mixed(causal_until=4))
    assert "moves the outputs at 0 to 11 of 12" in lines(doctor)[-1]


def test_what_is_as_it_was_is_not_told_again() -> None:
    torch.manual_seed(0)
    model = Mixed(causal_until=100)
    model.gate.data.fill_(1.0)
    doctor, _ = trained(model)
    assert len(lines(doctor)) == 1
    assert [one for one in doctor.description.of("model") if one.startswith("as tried again in evaluation mode")]


def test_to_ask_for_the_page_at_every_step_changes_nothing() -> None:
    weights, drawn = [], []
    for asked in (False, True):
        torch.manual_seed(0)
        model = Mixed(causal_until=4)
        drawn.append(trained(model, asked)[1])
        weights.append([p.detach().clone() for p in model.parameters()])
        assert model.training
    assert torch.equal(*drawn)
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_a_model_that_takes_no_rows_any_more_is_said_to() -> None:
    torch.manual_seed(0)
    model = Mixed(causal_until=100)
    doctor, _ = trained(model)
    model.steps = -1
    assert "not tried again: the model as it is now takes no such rows" in doctor.description.of("model")
    assert dict(doctor.skipped) == {}
