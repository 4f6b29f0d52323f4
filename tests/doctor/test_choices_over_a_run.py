"""Choices that a run's own course tells from mistakes: rates, ids, weights and losses over its steps."""

from __future__ import annotations

import copy
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


@pytest.mark.parametrize(("taken_back", "expected"), [(True, []), (False, [MISTAKE])])
def test_a_step_is_made_twice_or_taken_back_and_tried_at_another_rate(taken_back: bool, expected: list[bool]) -> None:
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(4):
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            start = copy.deepcopy(model.state_dict())
            optimizer.step()
            if taken_back:
                model.load_state_dict(start)
            optimizer.step()
            doctor.step(loss, given)
    assert accused(doctor, "stepped-twice") == expected


@pytest.mark.parametrize(("put_back", "expected"), [(True, []), (False, [MISTAKE])])
def test_losses_of_weights_that_were_put_back_are_no_measure(put_back: bool, expected: list[bool]) -> None:
    """A few large steps on each task from the same start; or all the tasks one after the other by the same weights."""
    model = net(6, 16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3, weight_decay=1.5)
    start = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with limpid.watch(model, optimizer, say=False, every=1) as doctor:
        for task in range(6):
            if put_back:
                model.load_state_dict(start[0])
                optimizer.load_state_dict(start[1])
            x, y = table(16)
            for _ in range(8):
                loss = squared(model, (x, (-1) ** task * 3 * y))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                doctor.step(loss, (x, y))
    assert accused(doctor, "learning-rate-too-high") == expected


@pytest.mark.parametrize("own", [CHOICE, MISTAKE])
def test_a_first_step_that_forgets_the_start_by_a_rule_of_ones_own_or_by_too_high_a_rate(own: bool) -> None:
    class Longer(torch.optim.SGD):
        """A rule that stands in nobody's library."""

    model = net(6, 1)
    kind = Longer if own is CHOICE else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=1.5)
    with limpid.watch(model, optimizer, say=False, every=1) as doctor:
        for _ in range(6):
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
    assert accused(doctor, "learning-rate-too-high") == [own]


class AddedAndTakenBack(torch.optim.SGD):
    """Noise is added to the weights, and that of the step before taken off; Orvieto et al. 2022."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            new = 0.05 * torch.randn_like(p)
            p += new - self.state[p].get("noise", 0.0)
            self.state[p]["noise"] = new


@pytest.mark.parametrize("own", [CHOICE, MISTAKE])
def test_weights_that_move_and_a_loss_that_waits_by_a_rule_of_ones_own_or_by_too_high_a_rate(own: bool) -> None:
    """Squared distances of six numbers from their targets, so that at a rate of 6 each step leaps to the other side."""
    model, y = nn.Linear(6, 1, bias=False), 10 * torch.ones(6)
    parameters = model.parameters()
    optimizer: Any = AddedAndTakenBack(parameters, lr=1e-3) if own is CHOICE else torch.optim.SGD(parameters, lr=6)
    with limpid.watch(model, optimizer, say=False, every=1) as doctor:
        for _ in range(24):
            loss = squared(model, (torch.eye(6), y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (torch.eye(6), y))
    assert accused(doctor, "learning-rate-too-high") == [own]


def test_places_of_one_sentence_see_each_other() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.here, self.before = nn.Embedding(16, 16), nn.Embedding(16, 16)

        def forward(self, ids: Tensor) -> Tensor:
            return torch.as_tensor(self.here(ids) + self.before(ids.roll(1, 0)))

    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            ids = torch.randint(0, 16, (12,))
            labels = (ids + ids.roll(1, 0)) % 16
            loss = F.cross_entropy(model(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (ids, labels))
    assert accused(doctor, "batch-leaks") == [CHOICE]
