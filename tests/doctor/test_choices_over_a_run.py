"""Choices that a run's own course tells from mistakes: rates, ids, weights and losses over its steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import net, table
from doctor.test_choice_or_mistake import CHOICE, MISTAKE, accused, squared


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(("whole", "group", "found"), [(True, False, 1), (False, True, 1), (False, False, 0)])
def test_a_rate_of_0_in_a_warm_up_or_of_one_group_is_asked_about(whole: bool, group: bool, found: int) -> None:
    model = net(6, 16, 1)
    first, *rest = model.parameters()
    optimizer = torch.optim.Adam([{"params": [first], "lr": 0.0 if group else 1e-2}, {"params": rest}], lr=1e-2)

    def share(step: int) -> float:
        return min(1.0, step // 24 if whole else (step + 1) / 24)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    with limpid.watch(model, optimizer, scheduler=schedule, say=False) as doctor:
        for _ in range(28):
            given = table()
            value = squared(model, given)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
            doctor.step(value, given)
    assert accused(doctor, "learning-rate-zero") == [CHOICE] * found


@pytest.mark.parametrize("folds", [CHOICE, MISTAKE])
def test_ids_beyond_the_table_accuse_where_the_table_is_asked_for_them(folds: bool) -> None:
    """A model that folds them by a hash, as of several tables with fewer rows than words; and one that does not."""

    class Hashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(16, 8), nn.Linear(8, 60)

        def forward(self, ids: Tensor) -> Tensor:
            out: Tensor = self.head(self.tokens(ids * 7 % 16 if folds is CHOICE else ids))
            return out

    model = Hashed()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(4):
            ids = torch.randint(0, 60, (8, 12))
            try:
                loss = F.cross_entropy(model(ids).flatten(0, 1), (ids + 1).flatten() % 60)
            except IndexError:
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
    assert accused(doctor, "ids-out-of-range") == [folds]


def test_what_stands_at_0_still_reads_nothing_yet() -> None:
    """A linear model of clicks whose weights all begin at 0, and leave it once enough speaks for it (FTRL)."""
    model = nn.Sequential(nn.EmbeddingBag(64, 1, mode="sum"), nn.Flatten(0))
    nn.init.zeros_(model[0].weight)  # type: ignore[arg-type]
    sums = torch.zeros(64, 1)

    class Proximal(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__(model.parameters(), {"lr": 1.0})

        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                sums.add_(model[0].weight.grad)  # type: ignore[arg-type]
                model[0].weight.copy_(-(sums - sums.clamp(-0.4, 0.4)))  # type: ignore[operator]

    optimizer = Proximal()
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(24):
            ids = torch.randint(0, 64, (16, 6))
            loss = F.binary_cross_entropy_with_logits(model(ids), (ids[:, 0] % 2).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (ids, ids[:, 0] % 2))
    assert not [one.rule for one in doctor.findings if one.severity != "notice"]


@pytest.mark.parametrize(("planned", "accuses"), [(120, [CHOICE]), (80, [MISTAKE])])
def test_nothing_was_learned_yet_is_asked_about(planned: int, accuses: list[bool]) -> None:
    model, picked = net(6, 32, 3), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def rows(number: int) -> tuple[Tensor, Tensor]:
        return torch.randn(32, 6), torch.randint(0, 3, (32,), generator=picked)

    with limpid.watch(model, optimizer, say=False, total_steps=planned) as doctor:
        for number in range(70):
            given = rows(number)
            loss = F.cross_entropy(model(given[0]), given[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
    assert accused(doctor, "nothing-learned") == accuses
