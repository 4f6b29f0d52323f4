"""Pairs of answers that are one answer twice, and batches that only look so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import alarms

PROMPT, ANSWER = 4, 3


def likelihood(model: nn.Module, rows: Tensor) -> Tensor:
    scores = model(rows[:, :-1]).log_softmax(-1).gather(-1, rows[:, 1:, None])[..., 0]
    return scores[:, PROMPT - 1 :].sum(1)


def said(batch: Any, steps: int = 5) -> bool:
    """Whether a loop on such batches is told that the sides of its pairs are equal."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(steps):
            given = batch()
            if "input_ids" in given:
                chosen, rejected = given["input_ids"].chunk(2)
            else:
                chosen, rejected = given["chosen_input_ids"], given["rejected_input_ids"]
            loss = -F.logsigmoid(likelihood(model, chosen) - likelihood(model, rejected)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
    assert dict(doctor.skipped) == {}
    return "pair-sides-equal" in alarms(doctor)


def rows(equal: float, prompts: bool = True) -> tuple[Tensor, Tensor]:
    """Chosen and rejected rows, of which so many have the same answer; `prompts`: whether they share theirs."""
    prompt = torch.randint(1, 16, (4, PROMPT))
    one, other = torch.randint(1, 16, (2, 4, ANSWER)).unbind()
    other = torch.where(torch.rand(4, 1) < equal, one, other)
    return torch.cat([prompt, one], 1), torch.cat([prompt if prompts else prompt.roll(1, 0), other], 1)


@pytest.mark.parametrize(("equal", "found"), [(1.0, True), (0.5, False), (0.0, False)])
def test_two_columns(equal: float, found: bool) -> None:
    def batch() -> dict[str, Tensor]:
        chosen, rejected = rows(equal)
        return {"chosen_input_ids": chosen, "rejected_input_ids": rejected}

    assert said(batch) == found


@pytest.mark.parametrize(("equal", "prompts", "found"), [(1.0, True, True), (0.5, True, False), (1.0, False, False)])
def test_two_halves_of_the_rows(equal: float, prompts: bool, found: bool) -> None:
    def batch() -> dict[str, Tensor]:
        ids = torch.cat(rows(equal, prompts))
        mask = torch.zeros_like(ids)
        mask[:, PROMPT:] = 1
        return {"input_ids": ids, "completion_mask": mask}

    assert said(batch) == found


def test_samples_of_a_policy_may_agree() -> None:
    def batch() -> dict[str, Tensor]:
        ids = torch.cat(rows(1.0))
        mask = torch.zeros_like(ids)
        mask[:, PROMPT:] = 1
        return {"input_ids": ids, "completion_mask": mask, "advantages": torch.randn(len(ids))}

    assert not said(batch)
