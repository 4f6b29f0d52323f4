"""A step that breaks is made again, one thing changed; what heals it is named, and the training goes on as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import limpid
from doctor.bench import VOCAB, Decoder, batch, groups, mean_loss
from limpid.doctor.finding import Finding
from limpid.doctor.model_info import ModelInfo
from limpid.doctor.replay import counterfactuals
from limpid.doctor.replay.counterfactuals import NotInvertible, weights_before_update
from limpid.doctor.watched import Watched

BREAKS = 6
"""The step, counted from 0, before which something is done to a run."""


class Narrow(nn.Module):
    """Next-token scores from a product in float16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.head = nn.Embedding(VOCAB, 16), nn.Linear(16, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.tokens(ids).half() @ self.head.weight.half().T).float() / 1e4


class Exponential(Decoder):
    """One weight of the head stands in an exponent: float32 ends at e^88.7."""

    def __init__(self) -> None:
        super().__init__()
        self.steep = nn.Parameter(torch.zeros(2, 2))

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * (1 + 1e-3 * self.steep.exp().mean())


class Logarithm(Decoder):
    """The logarithm of the share of tokens that are not 0: -inf for a row of zeros."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + (ids != 0).float().mean(1).log()[:, None, None]


def run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    before: Callable[[int], None] = lambda number: None,
    given: Callable[[int], Any] = batch,
    watched: bool = True,
    steps: int = BREAKS + 2,
    autocast: bool = False,
) -> tuple[list[Any], Any]:
    """Losses, final weights and random state; and the doctor."""
    torch.manual_seed(1)
    doctor = limpid.watch(model, optimizer, say=False) if watched else None
    losses: list[Any] = []
    for number in range(steps):
        before(number)
        with torch.autocast("cpu", torch.float16, enabled=autocast):
            loss = mean_loss(model, given(number))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(str(float(loss.detach())))  # a nan equals itself as a word
        if doctor is not None:
            doctor.step(loss, given(number))
    if doctor is not None:
        doctor.close()
        assert doctor.skipped == {}
    return [*losses, *(str(p.detach().double().sum().item()) for p in model.parameters()), str(torch.rand(2))], doctor


def opened(rule: str, make: Callable[[], tuple[Any, ...]], **options: Any) -> Finding:
    """The finding of a run that breaks, which is the same to the bit without the doctor."""
    model, optimizer, *changes = make()
    seen, doctor = run(model, optimizer, *changes, **options)
    model, optimizer, *changes = make()
    plain, _ = run(model, optimizer, *changes, **options, watched=False)
    assert seen == plain
    return next(finding for finding in doctor.findings if finding.rule == rule)


def adam(model: nn.Module, rate: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups(model), lr=rate)


def grown(model: nn.Module, by: float) -> Callable[[int], None]:
    def before(number: int) -> None:
        if number == BREAKS:
            with torch.no_grad():
                model.head.weight *= by

    return before


def test_what_float32_heals_is_precision() -> None:
    def make() -> tuple[Any, ...]:
        model = Narrow()
        return model, adam(model), grown(model, 1e5)

    found = opened("overflow-in-half", make)
    assert found.step == BREAKS + 1
    assert found.evidence["finite_in_float32"]
    assert "the same step in float32 is finite: precision is the cause" in found.says.lower()
    assert "float32" in found.cause


def test_a_step_inside_autocast_is_made_again_inside_it() -> None:
    def make() -> tuple[Any, ...]:
        model = Decoder()
        return model, adam(model), grown(model, 3e5)

    found = opened("overflow-in-half", make, autocast=True)
    assert found.evidence["finite_in_float32"]
    assert "float16" in found.says


def test_what_a_tenth_of_the_last_update_heals_is_the_rate() -> None:
    def make() -> tuple[Any, ...]:
        model = Exponential()
        others = [p for p in model.parameters() if p is not model.steep]
        optimizer = torch.optim.AdamW([{"params": others}, {"params": [model.steep], "lr": 0.0}], lr=1e-3)
        model.steep.register_hook(lambda gradient: -torch.ones_like(gradient))

        def before(number: int) -> None:
            if number == BREAKS - 1:  # this one update adds 300 to the exponent
                optimizer.param_groups[-1]["lr"] = 300.0

        return model, optimizer, before

    found = opened("not-finite", make)
    assert found.step == BREAKS + 1
    assert found.evidence["finite_a_tenth"]
    assert found.evidence["finite_one_update_earlier"]
    assert "the rate is too high" in found.says
    assert "finite_in_float32" not in found.evidence  # it is computed in float32


def test_what_leaving_out_a_row_heals_is_the_batch() -> None:
    def given(number: int) -> Any:
        x, y = batch(number)
        return x.index_fill(0, torch.tensor([2]), 0) if number == BREAKS else x.clamp(min=1), y

    def make() -> tuple[Any, ...]:
        model = Logarithm()
        return model, adam(model)

    found = opened("not-finite", make, given=given)
    assert found.evidence["rows_that_break_alone"] == [2]
    assert found.evidence["finite_without_them"]
    assert found.evidence["previous_batch_is_finite"]
    assert "without them the step is finite" in found.says


def test_a_loss_that_rises_is_tried_at_a_tenth_of_its_rate() -> None:
    def make() -> tuple[Any, ...]:
        model = Decoder()
        optimizer = adam(model)

        def before(number: int) -> None:
            if number == 12:
                for group in optimizer.param_groups:
                    group["lr"] = 0.1

        return model, optimizer, before

    found = opened("learning-rate-too-high", make, steps=32)
    assert found.evidence["loss_after_a_tenth"] < found.evidence["loss_before"] < found.evidence["loss_after"]
    assert "at a tenth of the rate the same step lowers it" in found.says


def test_weights_too_large_to_copy_are_not_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counterfactuals, "ROOM", 1024)

    def make() -> tuple[Any, ...]:
        model = Narrow()
        return model, adam(model), grown(model, 1e5)

    found = opened("overflow-in-half", make)
    assert set(found.evidence["not_replayed"]) == {"in float32", "with the weights before"}
    assert "Not replayed: in float32 (copies of the weights take" in found.says


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda own: torch.optim.AdamW(own, lr=3e-3, weight_decay=0.1),
    lambda own: torch.optim.Adam(own, lr=3e-3, weight_decay=0.1),
    lambda own: torch.optim.SGD(own, lr=3e-2, momentum=0.9, weight_decay=0.1),
]


@pytest.mark.parametrize("optimizer_of", OPTIMIZERS, ids=["adamw", "adam", "momentum"])
def test_an_update_is_taken_back_to_rounding(optimizer_of: Callable[[Any], torch.optim.Optimizer]) -> None:
    model = Decoder()
    optimizer = optimizer_of(model.parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    for number in range(5):
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer.zero_grad()
        mean_loss(model, batch(number)).backward()
        optimizer.step()
    watched = Watched(ModelInfo(model), [optimizer])
    whole, tenth = weights_before_update(watched, rates), weights_before_update(watched, rates, 0.9)
    for name, after in model.named_parameters():
        torch.testing.assert_close(whole[name], before[name], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(tenth[name], before[name].lerp(after.detach(), 0.1), rtol=1e-5, atol=1e-7)


def test_an_update_that_nothing_remembers_is_not_taken_back() -> None:
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=math.pi)
    mean_loss(model, batch(0)).backward()
    optimizer.step()
    with pytest.raises(NotInvertible, match="SGD keeps no record"):
        weights_before_update(Watched(ModelInfo(model), [optimizer]), [math.pi])
