"""What targets, classes and rewards teach, read from the loss's arguments and from the gradients of outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import alarms, classes, net, table, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def squared(model: nn.Module, given: Any) -> Tensor:
    return F.mse_loss(model(given[0]).flatten(), given[1])


def test_a_relu_cannot_say_what_is_below_zero() -> None:
    ends = nn.Sequential(net(6, 16, 1), nn.ReLU())
    nn.init.ones_(ends[0][-1].bias)
    assert watched(ends, table, squared) == ["targets-out-of-reach"]

    def positive() -> tuple[Tensor, Tensor]:
        x, y = table()
        return x, y.abs()

    assert watched(nn.Sequential(net(6, 16, 1), nn.ReLU()), positive, squared) == []


def test_a_column_that_is_the_target() -> None:
    def beside(noise: float) -> tuple[Tensor, Tensor]:
        x, y = table()
        return torch.cat([x, y[:, None] + noise * torch.randn(len(y), 1)], 1), y

    assert watched(net(7, 16, 1), lambda: beside(0.0), squared) == ["target-in-inputs"]
    assert watched(net(7, 16, 1), lambda: beside(0.1), squared) == []


class Pairs(nn.Module):
    """Users and items, looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items, self.top = nn.Embedding(640, 8), nn.Embedding(640, 8), nn.Linear(16, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = pairs.long().unbind(1)
        return self.top(torch.cat([self.users(user), self.items(item)], 1))


def test_ids_that_a_format_cannot_tell_apart() -> None:
    def pairs(kind: torch.dtype) -> tuple[Tensor, Tensor]:
        ids = torch.stack([torch.randint(0, 40, (64,)), torch.randint(0, 600, (64,))], 1)
        return ids.to(kind), torch.randn(64)

    assert watched(Pairs(), lambda: pairs(torch.bfloat16), squared) == ["ids-in-half"]
    assert watched(Pairs(), lambda: pairs(torch.int64), squared) == []


@pytest.mark.parametrize("ends", [False, True])
def test_a_value_ends_with_its_episode(ends: bool) -> None:
    def batch() -> dict[str, Tensor]:
        done = (torch.rand(64) < 0.25).float()
        return {"states": torch.randn(64, 4), "rewards": done * 1.5, "done": done, "next": torch.randn(64, 4)}

    def loss(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
        after = 0.9 * model(given["next"]).detach().flatten() * (1 - given["done"] if ends else 1)
        return F.mse_loss(model(given["states"]).flatten(), given["rewards"] + after)

    assert watched(net(4, 16, 1), batch, loss) == ([] if ends else ["target-past-the-end"])


@pytest.mark.parametrize("labels", [(0.0, 1.0), (-1.0, 1.0)])
def test_a_class_without_gradient(labels: tuple[float, float]) -> None:
    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(48, 4)
        return x, torch.where(x[:, 0] > 0, labels[1], labels[0])

    def hinge(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
        return F.relu(1 - given[1] * model(given[0]).squeeze(1)).mean()

    assert watched(net(4, 16, 1), batch, hinge) == (["class-without-gradient"] if labels[0] == 0 else [])


@pytest.mark.parametrize("inverted", [True, False])
def test_weights_of_classes_the_wrong_way_round(inverted: bool) -> None:
    share = torch.tensor([0.6, 0.3, 0.1])
    weight = 3 * share if inverted else 0.5 / share
    found = watched(net(3, 16, 3), lambda: classes(64), lambda m, b: F.cross_entropy(m(b[0]), b[1], weight=weight))
    assert found == (["class-weights-inverted"] if inverted else [])


def bandit(sign: float, groups: bool, easy: float) -> tuple[Any, Any]:
    worth = torch.rand(6, 4)

    def batch() -> dict[str, Tensor]:
        states = torch.arange(6).repeat_interleave(8)
        actions = torch.randint(0, 4, (48,))
        reward = worth[states, actions] + easy * states.float()
        return {"prompts": states, "answers": actions, "rewards": reward}

    def loss(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
        reward, choice = (
            given["rewards"],
            torch.distributions.Categorical(logits=model(F.one_hot(given["prompts"]).float())),
        )
        each = reward.view(6, 8)
        advantage = (each - each.mean(1, keepdim=True)).flatten() if groups else reward - reward.mean()
        return -sign * (choice.log_prob(given["answers"]) * advantage).mean()

    return batch, loss


def test_what_earned_more_is_made_likelier() -> None:
    assert watched(net(6, 16, 4), *bandit(-1.0, True, 0.0)) == ["reward-descended"]
    assert watched(net(6, 16, 4), *bandit(1.0, True, 0.0)) == []


def test_answers_that_earned_little_are_to_become_rarer() -> None:
    """One answer of each prompt, all below the mean: its gradient is that of a likelihood, negated."""

    def batch() -> dict[str, Tensor]:
        return {"states": torch.randn(16, 6), "actions": torch.randint(0, 4, (16,)), "advantages": -torch.ones(16)}

    def loss(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
        logs = model(given["states"]).log_softmax(-1).gather(1, given["actions"][:, None]).squeeze(1)
        return -(logs * given["advantages"]).mean()

    assert watched(net(6, 16, 4), batch, loss) == []


def test_answers_are_compared_with_those_to_the_same_prompt() -> None:
    assert watched(net(6, 16, 4), *bandit(1.0, False, 2.0)) == ["baseline-over-all-prompts"]
    assert watched(net(6, 16, 4), *bandit(1.0, True, 2.0)) == []


@pytest.mark.parametrize("related", [False, True])
def test_a_loss_at_chance_after_weights_have_moved(related: bool) -> None:
    def batch() -> tuple[Tensor, Tensor]:
        x, y = classes(48)
        return x, y if related else y[torch.randperm(48)]

    found = watched(net(3, 16, 3), batch, lambda m, b: F.cross_entropy(m(b[0]), b[1]), 121)
    assert found == ([] if related else ["nothing-learned"])


def test_predictions_that_are_the_mean_of_unrelated_targets() -> None:
    found = watched(net(6, 16, 1), lambda: (torch.randn(64, 6), torch.randn(64)), squared, 121)
    assert "nothing-learned" in found
    assert watched(net(6, 32, 1), lambda: table(64), squared, 121) == []


@pytest.mark.parametrize("divided", [1, 3])
def test_passes_that_each_begin_at_a_whole_mean(divided: int) -> None:
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            batches = [table(8) for _ in range(3)]
            optimizer.zero_grad()
            for x, y in batches:
                (F.huber_loss(model(x).flatten(), y) / divided).backward()
            optimizer.step()
            doctor.step(torch.tensor(1.0), batches)
    assert alarms(doctor) == (["accumulation-not-divided"] if divided == 1 else [])


def test_gradients_that_are_divided_by_hand_are_divided() -> None:
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            batches = [table(8) for _ in range(4)]
            optimizer.zero_grad()
            for x, y in batches:
                F.huber_loss(model(x).flatten(), y).backward()
            for p in model.parameters():
                p.grad /= 4
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            doctor.step(torch.tensor(1.0), batches)
    assert alarms(doctor) == []
