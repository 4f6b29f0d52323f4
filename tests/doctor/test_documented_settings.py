"""Settings and calls that count in other units, or the other way round, than their documentation; and honest ones."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import limpid
from doctor.small_loops import alarms, net, table, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def squared(model: nn.Module, given: Any) -> Tensor:
    return F.mse_loss(model(given[0]).flatten(), given[1])


def looped(
    rule: str,
    model: nn.Module | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    after: Callable[[int, nn.Module], None] = lambda number, model: None,
    clip: Callable[[nn.Module], Any] = lambda model: None,
    steps: int = 6,
    **options: Any,
) -> bool:
    """Whether a rule speaks of a plain loop, as worse than a notice."""
    model = model or net(6, 16, 1)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-2)
    made = None if scheduler is None else scheduler(optimizer)
    with limpid.watch(model, optimizer, scheduler=made, say=False, rules=[rule], **options) as doctor:
        for number in range(steps):
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            clip(model)
            optimizer.step()
            if made is not None:
                made.step()
            doctor.step(loss, given)
            after(number, model)
    assert dict(doctor.skipped) == {}
    return rule in alarms(doctor)


def by(function: Callable[[int], float]) -> Any:
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, function)


def test_a_function_of_lambda_lr_is_a_factor() -> None:
    rule = "schedule-factor-is-a-rate"
    assert looped(rule, scheduler=by(lambda t: 1e-2 * (1 + math.cos(math.pi * t / 100)) / 2))
    assert not looped(rule, scheduler=by(lambda t: (1 + math.cos(math.pi * t / 100)) / 2))
    assert not looped(rule, scheduler=by(lambda t: min(1.0, t / 10_000)))  # a long warm-up
    assert not looped(rule, scheduler=by(lambda t: 0.1))
    model = net(6, 16, 1)
    whole = torch.optim.SGD(model.parameters(), lr=1.0)  # the rate itself is the function
    assert not looped(rule, model, whole, by(lambda t: 1e-2))


def test_milestones_count_calls() -> None:
    rule, steps = "schedule-never-acts", torch.optim.lr_scheduler.StepLR
    several = torch.optim.lr_scheduler.MultiStepLR
    assert looped(rule, scheduler=lambda o: steps(o, 3000), total_steps=40)
    assert looped(rule, scheduler=lambda o: several(o, [3000, 4000]), total_steps=40)
    assert not looped(rule, scheduler=lambda o: several(o, [30, 4000]), total_steps=40)
    assert not looped(rule, scheduler=lambda o: steps(o, 3000))  # nobody says how long the run is


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"momentum": 1.0}, True),
        ({"momentum": 0.9, "dampening": 1.0}, True),
        ({"momentum": 0.9, "dampening": 0.9}, False),
        ({"momentum": 0.99, "nesterov": True}, False),
        ({"momentum": 0.0, "dampening": 0.0}, False),
    ],
)
def test_momentum_forgets(options: dict[str, Any], found: bool) -> None:
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, **options)
    assert looped("momentum-without-end", model, optimizer) == found


@pytest.mark.parametrize(
    ("momentum", "found"), [(0.99, True), (0.9, True), (0.0, True), (0.1, False), (1.0, False), (None, False)]
)
def test_a_batch_norm_takes_the_share_of_the_new(momentum: float | None, found: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16, momentum=momentum), nn.ReLU(), nn.Linear(16, 1))
    assert looped("batch-norm-momentum", model) == found


def test_statistics_that_are_kept_on_purpose() -> None:
    norm = nn.BatchNorm1d(16, momentum=0.0)
    norm.running_mean.normal_()
    assert not looped("batch-norm-momentum", nn.Sequential(nn.Linear(6, 16), norm, nn.Linear(16, 1)))


@pytest.mark.parametrize("limit", [0.0, -1.0, 1.0])
@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_"])
def test_a_limit_is_above_0(name: str, limit: float) -> None:
    def clipped(model: nn.Module) -> None:
        getattr(nn.utils, name)(model.parameters(), limit)

    assert looped("clipping-limit-not-positive", clip=clipped) == (limit <= 0)


@pytest.mark.parametrize("late", [True, False])
def test_entries_are_clipped_before_the_update(late: bool) -> None:
    def clipped(model: nn.Module) -> None:
        nn.utils.clip_grad_value_(model.parameters(), 0.1)

    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with limpid.watch(model, optimizer, say=False, rules=["clipped-after-update"]) as doctor:
        for _ in range(4):
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            if not late:
                clipped(model)
            optimizer.step()
            if late:
                clipped(model)
            doctor.step(loss, given)
    assert alarms(doctor) == (["clipped-after-update"] if late else [])


@pytest.mark.parametrize("copied", [True, False])
def test_the_best_weights_are_kept_by_a_copy(copied: bool) -> None:
    best: dict[str, Any] = {}

    def after(number: int, model: nn.Module) -> None:
        if number == 1:
            best["state"] = copy.deepcopy(model.state_dict()) if copied else model.state_dict()
        if number == 4:
            model.load_state_dict(best["state"])

    assert looped("loaded-from-itself", after=after) != copied


def test_state_that_is_loaded_at_once_or_elsewhere() -> None:
    twin = net(6, 16, 1)
    kept: dict[str, Any] = {}

    def after(number: int, model: nn.Module) -> None:
        kept.setdefault("state", model.state_dict())
        twin.load_state_dict(kept["state"])  # an old handle on the current weights, for a twin
        state = model.state_dict()
        state["0.weight"].mul_(0.999)
        model.load_state_dict(state)

    assert not looped("loaded-from-itself", after=after)


class MadeAnew(nn.Module):
    """A weight that is made a Parameter again in each pass, or clipped in place."""

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.first, self.last, self.anew = nn.Linear(6, 8), nn.Linear(8, 1), anew

    def forward(self, x: Tensor) -> Tensor:
        if self.anew:
            self.first.weight = nn.Parameter(self.first.weight.detach().clamp(-1, 1))
        else:
            with torch.no_grad():
                self.first.weight.clamp_(-1, 1)
        return self.last(self.first(x).tanh())


@pytest.mark.parametrize("anew", [True, False])
def test_parameters_stay_the_same_tensors(anew: bool) -> None:
    assert looped("optimizer-holds-strangers", MadeAnew(anew)) == anew


def test_a_head_that_is_replaced_with_its_optimizer() -> None:
    others = []

    def after(number: int, model: nn.Module) -> None:
        if number == 1:
            model[2] = nn.Linear(16, 1)
            others.append(torch.optim.SGD(model[2].parameters(), lr=1e-2))

    assert not looped("optimizer-holds-strangers", after=after)


class Checkpointed(nn.Module):
    """Two parts, of which the first is computed again in the backward pass."""

    def __init__(self, reentrant: bool, frozen: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.reentrant = net(6, 8, 8), nn.Linear(8, 1), reentrant
        self.first.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.first, x, use_reentrant=self.reentrant))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_checkpoint_has_an_input_with_a_gradient() -> None:
    rule = "checkpoint-without-gradient"
    assert looped(rule, Checkpointed(True))
    assert not looped(rule, Checkpointed(False))
    assert not looped(rule, Checkpointed(True, frozen=True))
    assert watched(Checkpointed(True, frozen=True), table, squared, rules=[rule]) == []


def test_the_second_part_of_a_schedule_begins() -> None:
    def after(milestone: int) -> Any:
        def made(optimizer: Any) -> Any:
            parts = [torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)]
            parts.append(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99))
            return torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [milestone])

        return made

    assert looped("schedule-never-acts", scheduler=after(400), total_steps=40)
    assert not looped("schedule-never-acts", scheduler=after(4), total_steps=40)


@pytest.mark.parametrize(("patience", "noise", "found"), [(2, 1.0, True), (30, 0.0, False)])
def test_a_plateau_is_not_heard_in_single_batches(patience: int, noise: float, found: bool) -> None:
    """A loss that falls slowly under the scatter of its batches; and one that is level."""
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.7, patience=patience, cooldown=8)
    with limpid.watch(model, optimizer, scheduler=scheduler, say=False, rules=["plateau-hears-batches"]) as doctor:
        for number in range(120):
            given = table(8)
            loss = squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step(noise * float(torch.rand(())) - 0.06 * number * noise + float(torch.rand(())))
            doctor.step(loss, given)
    assert ("plateau-hears-batches" in alarms(doctor)) == found


@pytest.mark.parametrize("kind", ["no eval", "eval", "measured anew", "labels"])
def test_an_evaluation_leaves_statistics_alone(kind: str) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))

    def after(number: int, model: nn.Module) -> None:
        often = kind == "labels"
        if number % 6 != 5 and not often:
            return
        model.train(kind != "eval")
        with torch.no_grad():
            for _ in range(1 if often else 4):
                model(table()[0])
            if kind == "measured anew":
                model.eval()(table()[0])
        model.train()

    assert looped("statistics-from-evaluation", model, after=after, steps=26) == (kind == "no eval")


def backward_twice(model: nn.Module, optimizer: Any, loss: Tensor) -> None:
    loss.backward(retain_graph=True)
    loss.backward()


def looked_at_first(model: nn.Module, optimizer: Any, loss: Tensor) -> None:
    loss.backward(retain_graph=True)
    optimizer.zero_grad()
    loss.backward()


def by_parts(model: nn.Module, optimizer: Any, loss: Tensor) -> None:
    loss.backward(inputs=list(model[0].parameters()), retain_graph=True)
    loss.backward(inputs=list(model[2].parameters()))


def two_losses(model: nn.Module, optimizer: Any, loss: Tensor) -> None:
    loss.backward(retain_graph=True)
    (0.1 * loss).backward()


@pytest.mark.parametrize("passes", [backward_twice, looked_at_first, by_parts, two_losses])
def test_a_loss_goes_back_once(passes: Any) -> None:
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with limpid.watch(model, optimizer, say=False, rules=["backward-twice"]) as doctor:
        for _ in range(4):
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            passes(model, optimizer, loss)
            optimizer.step()
            doctor.step(loss, given)
    assert alarms(doctor) == (["backward-twice"] if passes is backward_twice else [])
