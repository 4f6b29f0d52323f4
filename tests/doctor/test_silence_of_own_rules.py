"""Numbers that stand for something else: a rate that no update asks for, a score that rules a choice out."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import net, table
from doctor.test_choice_or_mistake import squared


class Signs(torch.optim.SGD):
    """Steps of one length, whatever the rate."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(1e-3 * parameter.grad.sign())


@pytest.mark.parametrize(("rule", "found"), [(Signs, []), (torch.optim.SGD, ["learning-rate-zero"])])
def test_a_rate_of_0_stops_no_rule_that_asks_for_none(rule: Any, found: list[str]) -> None:
    torch.manual_seed(0)
    model = net(6, 16, 1)
    optimizer = rule(model.parameters(), lr=0.0)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(30):
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
    assert [one.rule for one in doctor.findings if one.rule == "learning-rate-zero"] == found


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        (partial(torch.optim.Adam, amsgrad=True), []),
        (torch.optim.RMSprop, []),
        (torch.optim.NAdam, []),
        (torch.optim.SGD, ["learning-rate-too-low"]),
    ],
)
def test_a_small_gradient_is_a_small_step_only_where_the_rule_takes_it_as_it_is(rule: Any, found: list[str]) -> None:
    torch.manual_seed(0)
    model = net(6, 16, 1)
    optimizer = rule(model.parameters(), lr=1e-2)
    with limpid.watch(model, optimizer, say=False, rules=["learning-rate-too-low"]) as doctor:
        for _ in range(40):
            given = table()
            loss = 1e-6 * squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
    assert [one.rule for one in doctor.findings] == found


class ByScores(torch.optim.SGD):
    """Makes its gradients in the step, from a pass that it asks for; `forgets` leaves that out."""

    forgets = False

    def step(self, scores: Any, loss_of: Any) -> Tensor:  # type: ignore[override]
        loss: Tensor = loss_of(scores())
        if not self.forgets:
            own = self.param_groups[0]["params"]
            for parameter, gradient in zip(own, torch.autograd.grad(loss, own), strict=True):
                parameter.grad = gradient
        super().step()
        return loss.detach()


@pytest.mark.parametrize("forgets", [False, True])
def test_a_rule_that_makes_its_gradients_is_given_none(forgets: bool) -> None:
    torch.manual_seed(0)
    model = net(6, 16, 1)
    optimizer = ByScores(model.parameters(), lr=1e-2)
    optimizer.forgets = forgets
    with limpid.watch(model, optimizer, say=False, rules=["gradient-cut"]) as doctor:
        for _ in range(30):
            given = x, y = table()
            loss = optimizer.step(lambda x=x: model(x), lambda scores, y=y: F.mse_loss(scores[:, 0], y))
            doctor.step(loss, given)
    assert [one.rule for one in doctor.findings] == (["gradient-cut"] if forgets else [])


class Governed(nn.Module):
    """Which word each word depends on; on itself none does."""

    def __init__(self, factor: float, rules_out: bool) -> None:
        super().__init__()
        self.tokens, self.own, self.other = nn.Embedding(12, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.factor, self.rules_out = factor, rules_out

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids)
        scores: Tensor = self.factor * self.own(h) @ self.other(h).mT
        return scores.masked_fill(torch.eye(ids.shape[1], dtype=torch.bool), -1e9) if self.rules_out else scores


@pytest.mark.parametrize(
    ("factor", "rules_out", "found"), [(1.0, True, []), (200.0, False, ["initialisation-too-large"])]
)
def test_a_score_that_rules_a_choice_out_is_no_large_start(factor: float, rules_out: bool, found: list[str]) -> None:
    torch.manual_seed(0)
    model = Governed(factor, rules_out)

    def loss(called: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(called(ids).flatten(0, 1), torch.arange(1, 97) % 12)

    with limpid.watch(model, torch.optim.Adam(model.parameters(), lr=1e-3), say=False) as doctor:
        doctor.preflight(torch.randint(0, 12, (8, 12)), loss=loss)
    assert [one.rule for one in doctor.findings if one.rule == "initialisation-too-large"] == found


class Pairs(nn.Module):
    """Scores of pairs by a form that begins at exactly 0; `cut` ends the gradient behind it instead."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.tokens, self.body, self.cut = nn.Embedding(12, 16), net(16, 16, 16), cut
        self.form = nn.Parameter(torch.randn(16, 16) if cut else torch.zeros(16, 16))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.body(self.tokens(ids))
        h = h * 0 + h.detach() if self.cut else h
        scores: Tensor = h @ self.form @ h.mT
        return scores


@pytest.mark.parametrize(("cut", "found"), [(False, []), (True, ["gradient-cut"])])
def test_gradients_that_wait_for_a_form_to_leave_0_are_not_cut(cut: bool, found: list[str]) -> None:
    torch.manual_seed(0)
    model = Pairs(cut)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            ids = torch.randint(0, 12, (8, 12))
            loss = F.cross_entropy(model(ids).flatten(0, 1), torch.arange(1, 97) % 12)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
    assert [one.rule for one in doctor.findings if one.rule == "gradient-cut"] == found


class Neighbours(nn.Module):
    """Scores of a word beside others, all 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.here, self.there = nn.Embedding(40, 8), nn.Embedding(40, 8)
        nn.init.zeros_(self.there.weight)

    def forward(self, words: Tensor, others: Tensor) -> Tensor:
        return (self.here(words)[:, None] * self.there(others)).sum(2)


def test_words_drawn_for_comparison_are_no_smoothed_labels() -> None:
    torch.manual_seed(0)
    model = Neighbours()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            words, others = torch.randint(0, 40, (32,)), torch.randint(0, 40, (32, 6))
            scores = model(words, others)
            loss = -(F.logsigmoid(scores[:, 0]) + F.logsigmoid(-scores[:, 1:]).sum(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (words, others))
    assert [one.says for one in doctor.findings if "smoothed" in one.says] == []
