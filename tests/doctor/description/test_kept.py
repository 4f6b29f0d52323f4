"""Weights that something else than the update changes, and of which step those are that are evaluated or kept."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import classes, net


class Loop:
    """Points and their corners; `after` is called with the number of each step once it has been made."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = net(3, 32, 3)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.matrix = next(p for p in self.model.parameters() if p.shape == (32, 3))

    def run(self, after: Callable[[int], None], steps: int = 8) -> str:
        with limpid.watch(self.model, self.optimizer, say=False) as doctor:
            for step in range(1, steps + 1):
                x, y = classes()
                loss = F.cross_entropy(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                doctor.step(loss, (x, y))
                with torch.no_grad():
                    after(step)
        assert dict(doctor.skipped) == {}
        assert doctor.description is not None
        return "\n".join(doctor.description.of("run"))

    def judged(self) -> None:
        F.cross_entropy(self.model(torch.eye(3)), torch.arange(3))


@pytest.mark.parametrize("again", [False, True])
def test_pruned_weights(again: bool) -> None:
    loop = Loop()
    mask = (torch.arange(96) % 3 == 0).view(32, 3).roll(1, 1)

    def prune(step: int) -> None:
        if step == 4 or (again and step > 4):
            loop.matrix.mul_(mask)

    told = loop.run(prune)
    assert "something else than the update: 0.weight (1 of 4), after " in told
    assert "of their entries were set to 0 after step 4, of which " in told
    assert ("of which 100% are 0" in told) is again
    assert ("exactly 0 now: " in told) is again
    assert "the optimizer's moments were kept" in told
    assert ("after steps 4, 5, 6, 7," if again else "after step 4") in told


def test_an_optimizer_without_moments() -> None:
    loop = Loop()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    told = loop.run(lambda step: loop.matrix.mul_(0.5))
    assert "something else than the update: 0.weight (1 of 4), after 7 of 7 updates" in told
    assert "moments" not in told
    assert "weights now" not in told


@pytest.mark.parametrize("cleared", [False, True])
def test_merged_factors(cleared: bool) -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.up = nn.Parameter(torch.randn(3, 3), requires_grad=False), nn.Parameter(torch.zeros(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.base + self.up)

    loop = Loop()
    model = Adapted()
    loop.model, loop.optimizer = model, torch.optim.Adam([model.up], lr=1e-2)

    def merge(step: int) -> None:
        if step % 3 == 0:
            model.base.add_(model.up)
            if cleared:
                model.up.zero_()
                loop.optimizer.state.clear()

    told = loop.run(merge)
    assert ("all tensors (2 of 2, 1 of them frozen)" if cleared else "base (1 of 2, frozen)") in told
    assert "after steps 3, 6, by up to" in told
    assert f"the optimizer's moments were {'0 or gone then' if cleared else 'kept'}" in told


@pytest.mark.parametrize("copied", [False, True])
def test_the_best_weights_at_the_end(copied: bool) -> None:
    """Without a copy what is loaded back is the memory of the weights, and changes nothing."""
    loop = Loop()
    kept: dict[str, Tensor] = {}

    def keep(step: int) -> None:
        if step % 2 == 0:
            loop.judged()
        if step == 4:
            kept.update(copy.deepcopy(loop.model.state_dict()) if copied else loop.model.state_dict())
        if step == 8:
            loop.model.load_state_dict(kept)

    told = loop.run(keep)
    assert "cross_entropy without gradients, by evaluation: " in told
    assert "after step 8; least after step 8" in told
    assert ("weights now are those that step 4 left; the last step, 8, left others" in told) is copied


@pytest.mark.parametrize("put_back", [False, True])
def test_averages_that_are_evaluated(put_back: bool) -> None:
    loop = Loop()
    average = [p.detach().clone() for p in loop.model.parameters()]

    def swap(step: int) -> None:
        own = [p.clone() for p in loop.model.parameters()]
        for p, kept in zip(loop.model.parameters(), average, strict=True):
            kept.lerp_(p, 0.5)
            p.copy_(kept)
        loop.judged()
        if put_back:
            for p, before in zip(loop.model.parameters(), own, strict=True):
                p.copy_(before)

    told = loop.run(swap)
    assert "weights in evaluations: that no update left so 8 times" in told
    assert ("something else than the update: all tensors (4 of 4), after 7 of 7 updates" in told) is not put_back


@pytest.mark.parametrize("rounds", [False, True])
def test_weights_on_a_grid(rounds: bool) -> None:
    loop = Loop()
    told = loop.run(lambda step: loop.matrix.mul_(4).round_().clamp_(-1, 1).div_(4) if rounds else None)
    assert ("0.weight hold 2 different numbers beside 0 now, of 256 entries" in told) is rounds
