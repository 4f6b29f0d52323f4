"""A model whose steps are part of a game, or wait for another model: alone in the same loop it is accused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import net, table
from doctor.test_choice_or_mistake import CHOICE, MISTAKE, accused


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("other_learns", [CHOICE, MISTAKE])
def test_gradients_wiped_between_passes_are_another_models_where_that_one_steps(other_learns: bool) -> None:
    """A head takes four steps to one of its body, and throws the body's gradients away."""
    head, body = nn.Linear(8, 16), nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 8))
    steps = [torch.optim.Adam(one.parameters(), lr=1e-3) for one in (head, body)]
    with limpid.watch(body, steps[1], say=False) as doctor:
        for _ in range(4):
            for turn in range(5):
                ids = torch.randint(0, 16, (8, 12))
                for one in steps:
                    one.zero_grad()
                loss = F.cross_entropy(head(body(ids)).flatten(0, 1), (ids + 1).flatten() % 16)
                loss.backward()
                if turn < 4 and other_learns is CHOICE:
                    steps[0].step()
            steps[1].step()
            doctor.step(loss, ids)
    assert accused(doctor, "passes-count-unequally") == ([True] if other_learns is MISTAKE else [])


def risen(model: nn.Module, given: Tensor, share: float) -> Tensor:
    """A loss that rises by what another does."""
    return (model(given).square().mean() + 1 + 4 * share).log1p()


@pytest.mark.parametrize("game", [False, True])
def test_a_loss_that_rises_diverges_unless_another_model_learns_as_often(game: bool) -> None:
    """Gradients are those that autograd.grad returns, so that no graph shows who takes part."""
    forger, judge = net(6, 8, 1), net(6, 8, 1)
    optimizer, other = (torch.optim.Adam(one.parameters(), lr=1e-4) for one in (forger, judge))
    given: Any = table()[0]
    with limpid.watch(forger, optimizer, say=False) as doctor:
        for number in range(80):
            loss = risen(forger, given, max(0, number - 30) / 10)
            weights = list(forger.parameters())
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.grad = gradient
            optimizer.step()
            if game:
                judge(given).mean().backward()
                other.step()
                other.zero_grad()
            doctor.step(loss, given)
    severities = {one.severity for one in doctor.findings if one.rule == "loss-diverges"}
    assert severities == ({"notice"} if game else {"fault"})
