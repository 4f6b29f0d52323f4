"""Optimizers whose step calls another: one call from outside is one step, however many calls it makes itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import limpid
from doctor.small_loops import alarms, net, table

Step = Callable[[Any, Callable[[], Tensor]], None]


class Held(torch.optim.AdamW):
    """AdamW, and weights that are held within a box."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.clamp_(-2.0, 2.0)
        return loss


class Averaged(Held):
    """Every fifth step back half the way."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        super().__init__(parameters, **options)
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        self.times = 0

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.times += 1
        if self.times % 5 == 0:
            with torch.no_grad():
                for slow, fast in zip(self.slow, self.param_groups[0]["params"], strict=True):
                    fast.copy_(slow.lerp_(fast, 0.5))
        return loss


class Scaled(torch.optim.SGD):
    """A trust ratio: five steps of its rule, all of them its own."""

    def step(self, closure: Any = None) -> Any:
        for _ in range(4):
            super().step()
        return super().step(closure)


class Amplified(torch.optim.AdamW):
    """Five times what its rule says."""

    def step(self, closure: Any = None) -> Any:
        held = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in held]
        loss = super().step(closure)
        with torch.no_grad():
            for parameter, first in zip(held, before, strict=True):
                parameter.copy_(first.lerp(parameter, 5.0))
        return loss


class Around(torch.optim.Optimizer):
    """A wrapper that is all that it wraps, hooks included."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.__dict__.update(inner.__dict__)
        self.inner = inner
        self._patch_step_function()

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)


class Beside:
    """A wrapper that is no optimizer of torch's, and passes on what it has not."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


MADE: dict[str, Callable[[Any], Any]] = {
    "a subclass": lambda p: Held(p, lr=1e-2),
    "a subclass of one": lambda p: Averaged(p, lr=1e-2),
    "several steps of its rule": lambda p: Scaled(p, lr=1e-3),
    "a multiple of its rule's change": lambda p: Amplified(p, lr=1e-3),
    "a wrapper with the same hooks": lambda p: Around(torch.optim.AdamW(p, lr=1e-2)),
    "a wrapper of another kind": lambda p: Beside(torch.optim.AdamW(p, lr=1e-2)),
}
PLAIN = [torch.optim.AdamW([torch.zeros(1)]), torch.optim.SGD([torch.zeros(1)])]
"""From the first object of a class on torch calls hooks around that class's own step."""


def once(optimizer: Any, closure: Callable[[], Tensor]) -> None:
    closure()
    optimizer.step()


def with_closure(optimizer: Any, closure: Callable[[], Tensor]) -> None:
    optimizer.step(closure)


def twice(optimizer: Any, closure: Callable[[], Tensor]) -> None:
    once(optimizer, closure)
    optimizer.step()


def run(make: Callable[[Any], Any], step: Step, steps: int = 12) -> Any:
    model = net(6, 32, 1)
    optimizer = make(model.parameters())
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(steps):
            x, y = table()
            lost: list[Tensor] = []

            def closure() -> Tensor:
                optimizer.zero_grad()
                lost.append(nn.functional.mse_loss(model(x)[:, 0], y))  # noqa: B023
                lost[-1].backward()  # noqa: B023
                return lost[-1]  # noqa: B023

            step(optimizer, closure)
            doctor.step(lost[-1], (x, y))
    assert dict(doctor.skipped) == {}
    assert doctor.steps == steps
    return doctor


@pytest.mark.parametrize("step", [once, with_closure])
@pytest.mark.parametrize("made", MADE)
def test_a_step_that_calls_another_is_one(made: str, step: Step) -> None:
    assert alarms(run(MADE[made], step)) == []


@pytest.mark.parametrize("made", [*MADE, "plain"])
def test_two_calls_from_outside_are_two(made: str) -> None:
    make = MADE.get(made, lambda p: torch.optim.AdamW(p, lr=1e-2))
    doctor = run(make, twice, steps=4)
    assert alarms(doctor)[0] == "stepped-twice"
    assert doctor.findings[0].step == 2


def test_a_step_that_failed_hides_none_of_those_after_it() -> None:
    """An error inside of a step leaves it without its end."""

    class Failing(Held):
        fails = False

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise RuntimeError("no memory")
            return super().step(closure)

    made: list[Failing] = []

    def make(parameters: Any) -> Failing:
        made.append(Failing(parameters, lr=1e-2))
        return made[0]

    def step(optimizer: Any, closure: Callable[[], Tensor]) -> None:
        closure()
        optimizer.fails = True
        with pytest.raises(RuntimeError, match="no memory"):
            optimizer.step()
        optimizer.fails = False
        closure()
        optimizer.step()

    doctor = run(make, step, steps=3)
    assert len(doctor.history.rates) == 3
