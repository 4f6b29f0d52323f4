"""Rates of groups, moments, decay, weights after an evaluation, the reach of logits: what theory says of each."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from doctor.bench import VOCAB, Decoder, Loop, batch, groups, mean_loss, preflight, rules, warm
from limpid.doctor.logit_reach import floor


def alarms(loop: Loop, steps: int = 12) -> list[str]:
    _, doctor = loop.run(steps)
    assert doctor.skipped == {}
    return rules(doctor.findings)


# rates by group


def by_hand(loop: Loop, write: Callable[[list[Any], float], None]) -> Loop:
    """A schedule that the loop writes into the groups itself."""

    class Written:
        def step(self) -> None:
            write(loop.optimizer.param_groups, 3e-3 * warm(loop.number))

    loop.scheduler = Written()  # type: ignore[assignment]
    return loop


def test_a_schedule_that_is_written_into_the_first_group_alone() -> None:
    loop = by_hand(Loop(), lambda held, rate: held[0].update(lr=rate))
    _, doctor = loop.run(12)
    assert rules(doctor.findings) == ["schedule-misses-group"]
    assert doctor.findings[0].where == "parameter group 1"


def test_rates_of_their_own_that_are_overwritten() -> None:
    loop = Loop()
    held = groups(loop.model)
    held[0]["lr"] = 3e-4
    loop.optimizer = torch.optim.AdamW(held, lr=3e-3)

    def first(loss: Tensor) -> None:
        for group in loop.optimizer.param_groups:
            group["lr"] = 3e-3 * warm(loop.number)
        loss.backward()

    loop.backward = first  # type: ignore[method-assign]
    by_hand(loop, lambda held, rate: None)
    _, doctor = loop.run(5)
    assert rules(doctor.findings) == ["group-rates-made-equal"]


def constant_table(loop: Loop) -> None:
    """A function for each group: one of them is constant."""
    loop.scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, [warm, lambda step: 1.0])


def slow_matrices(loop: Loop) -> None:
    held = groups(loop.model)
    held[0]["lr"] = 3e-4
    loop.optimizer = torch.optim.AdamW(held, lr=3e-3)
    loop.scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, warm)


def constant_part(loop: Loop) -> None:
    """By hand, and the vectors at a rate of their own, which stays."""
    held = groups(loop.model)
    held[1]["lr"] = 1e-4
    loop.optimizer = torch.optim.AdamW(held, lr=3e-3)
    by_hand(loop, lambda held, rate: held[0].update(lr=rate))


def never_scheduled(loop: Loop) -> None:
    loop.scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: 1.0)


@pytest.mark.parametrize("honest", [constant_table, slow_matrices, constant_part, never_scheduled])
def test_rates_that_differ_by_intent(honest: Callable[[Loop], None]) -> None:
    loop = Loop()
    honest(loop)
    assert alarms(loop) == []


# moments


def trained(make: Callable[[Any], Any] = lambda p: torch.optim.AdamW(p, lr=1e-3)) -> tuple[nn.Module, Any]:
    model = Decoder()
    optimizer = make(model.parameters())
    for step in range(4):
        mean_loss(model, batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_moments_that_are_lost_beside_a_count() -> None:
    model, optimizer = trained()
    for state in optimizer.state.values():
        state["exp_avg"].zero_()
        state["exp_avg_sq"].zero_()
    assert preflight(model, optimizer=optimizer) == ["moments-do-not-fit"]


def test_a_count_that_is_lost_beside_moments() -> None:
    model, optimizer = trained()
    for state in optimizer.state.values():
        state["step"].zero_()
    assert preflight(model, optimizer=optimizer) == ["moments-do-not-fit"]


def test_moments_that_were_loaded_whole() -> None:
    model, optimizer = trained()
    resumed = torch.optim.AdamW(model.parameters(), lr=1e-3)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert preflight(model, optimizer=resumed) == []


def test_a_state_that_is_cleared_again_and_again() -> None:
    loop = Loop()

    def clear() -> None:
        Loop.clear(loop)
        if loop.number % 3 == 2:
            loop.optimizer.state.clear()

    loop.clear = clear  # type: ignore[method-assign]
    assert alarms(loop) == ["moments-do-not-fit"]


def test_a_state_that_is_cleared_once() -> None:
    loop = Loop()

    def clear() -> None:
        Loop.clear(loop)
        if loop.number == 5:
            loop.optimizer.state.clear()

    loop.clear = clear  # type: ignore[method-assign]
    assert alarms(loop) == []


# decay, memory


@pytest.mark.parametrize(
    ("make", "decay", "expected"),
    [
        (torch.optim.Adam, 1.0, ["decay-outweighs-gradient"]),
        (torch.optim.RMSprop, 1.0, ["decay-outweighs-gradient"]),
        (torch.optim.Adam, 1e-2, []),
        (torch.optim.AdamW, 1.0, []),
        (torch.optim.SGD, 1e-2, []),
    ],
)
def test_decay_beside_the_gradient(make: Any, decay: float, expected: list[str]) -> None:
    model = Decoder()
    held = groups(model)
    held[0]["weight_decay"] = decay
    assert preflight(model, optimizer=make(held, lr=1e-3)) == expected


@pytest.mark.parametrize(("beta", "planned", "expected"), [(0.999, 300, 1), (0.999, 100_000, 0), (0.95, 20, 0)])
def test_momentum_beside_the_length_of_the_run(beta: float, planned: int, expected: int) -> None:
    model = Decoder()
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3, betas=(beta, 0.9999))
    assert preflight(model, optimizer=optimizer, total_steps=planned) == ["memory-longer-than-the-run"] * expected


# evaluation


class Averaged(Loop):
    """A loop that evaluates an average of the weights every fourth step."""

    def __init__(self, back: bool) -> None:
        super().__init__()
        self.back, self.average = back, copy.deepcopy(self.model.state_dict())

    def clear(self) -> None:
        super().clear()
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                self.average[name].lerp_(value, 0.1)
            if self.number % 4 == 3:
                kept = copy.deepcopy(self.model.state_dict())
                self.model.load_state_dict(self.average)
                self.model.eval()
                self.model(batch(1000)[0])
                self.model.train()
                if self.back:
                    self.model.load_state_dict(kept)


def test_an_average_that_is_left_in_place() -> None:
    assert alarms(Averaged(back=False), 20) == ["evaluation-changes-weights"]


def test_an_average_that_is_taken_out_again() -> None:
    assert alarms(Averaged(back=True), 20) == []


class Shaken(Loop):
    """A loop that asks every fourth step how much worse the model is with noise on its weights, and takes that off."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        self.same = same

    def clear(self) -> None:
        super().clear()
        if self.number % 4 == 3:
            with torch.no_grad():
                noise = [0.1 * torch.randn_like(p) for p in self.model.parameters()]
                torch._foreach_add_(list(self.model.parameters()), noise)
                self.model(batch(1000)[0])
                off = noise if self.same else [0.1 * torch.randn_like(p) for p in self.model.parameters()]
                torch._foreach_sub_(list(self.model.parameters()), off)


@pytest.mark.parametrize("same", [True, False])
def test_noise_that_is_taken_off_to_rounding(same: bool) -> None:
    assert ("evaluation-changes-weights" in alarms(Shaken(same), 20)) != same


def test_weights_that_are_normalised_after_each_step() -> None:
    """And read without gradients after that, as a draw of answers does."""
    loop = Loop()

    def clear() -> None:
        Loop.clear(loop)
        with torch.no_grad():
            for p in loop.model.parameters():
                p *= 0.999
            if loop.number % 4 == 3:
                loop.model(batch(1000)[0])

    loop.clear = clear  # type: ignore[method-assign]
    assert alarms(loop, 20) == []


# the reach of logits


class Capped(Decoder):
    """Logits that go through something."""

    def __init__(self, cap: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, ids: Tensor) -> Tensor:
        return self.cap(super().forward(ids))


@pytest.mark.parametrize(
    "cap",
    [
        lambda z: 2 * torch.tanh(z / 2),
        lambda z: z.clamp(-1.5, 1.5),
        lambda z: 3 * torch.sigmoid(z),
        lambda z: torch.tanh(z),
    ],
)
def test_logits_that_cannot_come_far_enough_apart(cap: Callable[[Tensor], Tensor]) -> None:
    assert "logits-bounded" in preflight(Capped(cap))


@pytest.mark.parametrize(
    "cap",
    [
        lambda z: z,
        lambda z: 15 * torch.tanh(z / 15),
        lambda z: 30 * torch.sigmoid(z / 7.5),
        lambda z: z.log_softmax(-1),
    ],
)
def test_caps_that_leave_room(cap: Callable[[Tensor], Tensor]) -> None:
    assert preflight(Capped(cap)) == []


def test_vectors_of_length_1_with_a_scale_that_is_learned() -> None:
    class Cosine(Decoder):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(5.0))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids)
            for block in self.blocks:
                x = block(x)
            unit = nn.functional.normalize
            return self.scale * unit(self.norm(x), dim=-1) @ unit(self.head.weight, dim=-1).T

    assert "logits-bounded" not in preflight(Cosine())


def test_the_floor_is_that_of_softmax_twice_for_probabilities() -> None:
    """Probabilities lie at most 1 apart: ln(1 + (V - 1)/e) = ln(e + V - 1) - 1."""
    assert floor(VOCAB, 1.0) == pytest.approx(math.log(math.e + VOCAB - 1) - 1)
    assert floor(VOCAB, 60.0) < 1e-20
