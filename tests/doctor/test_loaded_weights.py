"""Trained weights in a model that computes something else with them, and trained ones in their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid

WORDS, WIDTH = 12, 24


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Offset(nn.Module):
    """A norm that multiplies by 1 + w."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:]) * (1 + self.weight)


class OffsetRMSNorm(Offset):
    """The same, by a name that says what it is."""


class Reader(nn.Module):
    """Two residual blocks over each token."""

    def __init__(self, norm: Any = nn.RMSNorm) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.norms = nn.ModuleList(norm(WIDTH) for _ in range(3))
        self.maps = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for norm, one in zip(self.norms, self.maps, strict=False):
            x = x + one(norm(x)).relu()
        out: Tensor = self.head(self.norms[2](x))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.tokens(ids))[0])
        return out


def rows(count: int = 16, length: int = 24) -> Tensor:
    """Each token is mostly 5 times the one before and 1 more."""
    ids = torch.randint(0, WORDS, (count, length))
    for t in range(1, length):
        ids[:, t] = torch.where(torch.rand(count) < 0.8, (5 * ids[:, t - 1] + 1) % WORDS, ids[:, t])
    return ids


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def trained(model: nn.Module, steps: int = 150) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, rows()).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def said(model: nn.Module, number: Tensor | None = None) -> list[str]:
    """What is said, in the first two steps that go on from these weights; `number`: what each token is called now."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            ids = rows() if number is None else number[rows()]
            loss = loss_of(model, ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
    assert dict(doctor.skipped) == {}
    assert all(f.severity == "notice" for f in doctor.findings if f.rule == "loaded-weights-know-nothing")
    return [f.rule for f in doctor.findings if f.rule in ("norm-gains-less-one", "loaded-weights-know-nothing")]


def test_gains_that_were_stored_less_one() -> None:
    state = trained(Reader()).state_dict()
    model = Reader()
    model.load_state_dict({k: v - 1 if "norm" in k else v for k, v in state.items()})
    assert said(model) == ["norm-gains-less-one"]
    model.load_state_dict(state)
    assert said(model) == []


@pytest.mark.parametrize("norm", [Offset, OffsetRMSNorm])
def test_norms_that_multiply_by_one_more(norm: Any) -> None:
    assert said(trained(Reader(norm))) == []


def test_gains_that_begin_at_zero_or_are_drawn() -> None:
    model = Reader()
    for norm in model.norms:
        nn.init.zeros_(norm.weight)
    assert said(model) == []
    for norm in model.norms:
        nn.init.normal_(norm.weight, 1.0, 0.02)
    assert said(model) == []


@pytest.mark.parametrize("model", [Reader, Recurrent])
def test_a_vocabulary_that_is_numbered_anew(model: Any) -> None:
    known = trained(model())
    assert said(known) == []
    assert said(known, torch.arange(WORDS).roll(5)) == ["loaded-weights-know-nothing"]


def test_gates_in_another_order() -> None:
    state = trained(Recurrent()).state_dict()
    for name in [name for name in state if name.startswith("core")]:
        i, f, g, o = state[name].chunk(4)
        state[name] = torch.cat([i, g, f, o])
    model = Recurrent()
    model.load_state_dict(state)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with limpid.watch(model, optimizer, say=False) as doctor:
        loss = loss_of(model, rows())
        loss.backward()
        optimizer.step()
        doctor.step(loss)
    [one] = [one for one in doctor.findings if one.rule == "loaded-weights-know-nothing"]
    assert (one.severity, one.where) == ("fault", "core")
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize("model", [Reader, Recurrent])
def test_fresh_weights_that_are_sure_of_themselves(model: Any) -> None:
    fresh = model()
    nn.init.normal_(fresh.head.weight, std=0.5)
    assert said(fresh) == []


def test_forget_gates_that_begin_open() -> None:
    model = Recurrent()
    with torch.no_grad():
        model.core.bias_ih_l0[WIDTH : 2 * WIDTH] = 1.0
    nn.init.normal_(model.head.weight, std=1.0)
    assert said(model) == []


def test_a_new_head_on_a_trained_body() -> None:
    model = trained(Reader())
    model.head.reset_parameters()  # type: ignore[operator, union-attr]
    assert said(model) == []
