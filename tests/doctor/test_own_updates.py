"""Laws of the usual update accuse in a usual loop; where the update is the loop's own they ask, until it suffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import limpid
from doctor.small_loops import net, table
from doctor.test_choice_or_mistake import CHOICE, MISTAKE, accused, squared


class Own(torch.optim.SGD):
    """A rule that no library has."""


def clamped(model: nn.Module) -> None:
    with torch.no_grad():
        model[0].weight.clamp_(-0.1, 0.1)  # type: ignore[index]


def halved(gradient: Tensor) -> Tensor:
    return gradient / 2


def summed(kind: str, rate: float = 1e-3, steps: int = 6) -> Any:
    """A loop that never clears its gradients."""
    torch.manual_seed(0)
    model = net(6, 16, 1)
    if kind == "hook":
        model[0].weight.register_hook(halved)
    optimizer = (Own if kind == "rule" else torch.optim.SGD)(model.parameters(), lr=rate)
    other = net(6, 8, 1)
    steps_other = torch.optim.SGD(other.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(steps):
            given = table()
            loss = squared(model, given)
            loss.backward()
            optimizer.step()
            if kind == "weights":
                clamped(model)
            if kind == "another":
                steps_other.zero_grad()
                squared(other, given).backward()
                steps_other.step()
            doctor.step(loss, given)
    return doctor


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("usual", ""),
        ("rule", "gradients kept in .grad on purpose"),
        ("weights", "weights that something beside the update writes"),
        ("another", "another model that learns in the same loop"),
        ("hook", "gradients that a hook of one's own changes"),
    ],
)
def test_a_law_of_the_usual_update_asks_where_the_update_is_the_loops_own(kind: str, words: str) -> None:
    doctor = summed(kind)
    assert accused(doctor, "gradients-not-cleared") == [MISTAKE if kind == "usual" else CHOICE]
    found = next(one for one in doctor.findings if one.rule == "gradients-not-cleared")
    assert words in found.meant


def test_gradients_that_no_backward_makes_are_an_update_of_the_loops_own() -> None:
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            given = table()
            loss = squared(model, given)
            for weight, gradient in zip(
                model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True
            ):
                weight.grad = gradient
            optimizer.step()
            doctor.step(loss, given)
    assert doctor.history.own_update == "gradients that no backward() makes"


def test_it_accuses_there_too_once_the_run_suffers() -> None:
    doctor = summed("rule", rate=1.0, steps=40)
    assert any(one.rule in ("not-finite", "loss-diverges") for one in doctor.findings if one.severity != "notice")
    assert accused(doctor, "gradients-not-cleared") == [MISTAKE]
