"""Loops that make something of their own of gradients, rows and weights, each beside the mistake that looks like it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import limpid
from doctor.bench import VOCAB, Decoder, batch, mean_loss
from doctor.small_loops import alarms, net, table
from limpid.doctor import Doctor


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def squared(model: nn.Module, given: Any) -> Tensor:
    return F.mse_loss(model(given[0]).flatten(), given[1])


def looped(
    model: nn.Module,
    steps: int,
    given: Callable[[int], Any],
    loss: Callable[[nn.Module, Any], Tensor],
    optimizer: Any,
    before: Callable[[int], None] = lambda step: None,
    between: Callable[[int], None] = lambda step: None,
    after: Callable[[int], None] = lambda step: None,
) -> Doctor:
    """A plain loop with something before its forward pass, before its update, and after it."""
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(steps):
            before(step)
            rows = given(step)
            value = loss(model, rows)
            optimizer.zero_grad()
            value.backward()
            between(step)
            optimizer.step()
            doctor.step(value, rows)
            after(step)
    assert dict(doctor.skipped) == {}
    return doctor


@pytest.mark.parametrize("owed", [True, False])
def test_gradients_of_which_the_largest_are_sent(owed: bool) -> None:
    """What is not sent is added to later gradients, or forgotten: then nothing of some rows is ever sent."""
    model = Decoder()
    left = {p: torch.zeros_like(p) for p in model.parameters()}

    def send(step: int) -> None:
        for p in model.parameters():
            assert p.grad is not None
            whole = p.grad + left[p]
            sent = whole * (whole.abs() >= whole.abs().flatten().topk(max(1, p.numel() // 50)).values[-1])
            left[p] = whole - sent if owed else left[p]
            p.grad = sent

    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    doctor = looped(model, 72, batch, mean_loss, optimizer, between=send)
    assert ("slice-without-gradient" in alarms(doctor)) != owed


@pytest.mark.parametrize("flags", [True, False])
@pytest.mark.parametrize("turns", [True, False])
def test_blocks_that_take_turns(flags: bool, turns: bool) -> None:
    """Of four blocks two learn at each step, by requires_grad or by what is left of their gradients."""
    model = Decoder(blocks=4)

    def still(step: int) -> list[nn.Module]:
        first = step % 4 if turns else 1
        return [model.blocks[first], model.blocks[(first + 2) % 4]]

    def freeze(step: int) -> None:
        for block in model.blocks:
            block.requires_grad_(not flags or block not in still(step))

    def take(step: int) -> None:
        for block in [] if flags else still(step):
            block.zero_grad(set_to_none=True)

    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    found = alarms(looped(model, 24, batch, mean_loss, optimizer, before=freeze, between=take))
    assert ("parameters-frozen" in found) == (flags and not turns)
    assert "gradient-cut" not in found


@pytest.mark.parametrize("best", [True, False])
def test_weights_that_an_evaluation_chose(best: bool) -> None:
    """A run at the level of its noise goes back to its best weights; or, while it still learns, to its first."""
    model = net(6, 16, 1)

    def rows(count: int) -> tuple[Tensor, Tensor]:
        x, y = table(count)
        return (x, x[:, 0] + torch.randn(count)) if best else (x, y)

    held = rows(256)
    kept, lowest = copy.deepcopy(model.state_dict()), float("inf")

    def judge(step: int) -> None:
        nonlocal kept, lowest
        if step % 12 != 11:
            return
        with torch.no_grad():
            score = float(squared(model, held))
        if best and score < lowest:
            kept, lowest = copy.deepcopy(model.state_dict()), score
        else:
            model.load_state_dict(kept)

    optimizer = torch.optim.AdamW(model.parameters(), 2e-2)
    found = looped(model, 120, lambda step: rows(128), squared, optimizer, after=judge)
    assert alarms(found) == ([] if best else ["weights-put-back"])


def test_weights_at_their_bounds_are_not_put_back() -> None:
    """A critic whose weights are clipped after each update: most are soon where they were."""
    model = net(2, 32, 1)

    def clamp(step: int) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.1, 0.1)

    def loss(critic: nn.Module, given: Any) -> Tensor:
        found: Tensor = critic(given[0] + 1).mean() - critic(given[0]).mean()
        return found

    points = lambda step: (torch.randn(64, 2), torch.zeros(64))  # noqa: E731
    doctor = looped(model, 60, points, loss, torch.optim.RMSprop(model.parameters(), 2e-3), after=clamp)
    assert "weights-put-back" not in [one.rule for one in doctor.findings]


@pytest.mark.parametrize("joined", ["averaged", "added"])
def test_gradients_that_a_loop_asks_for_and_joins(joined: str) -> None:
    """Two workers imitated: nobody but the loop knows what it makes of two gradients; by backward they are added."""
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(4):
            parts = [batch(2 * step), batch(2 * step + 1)]
            optimizer.zero_grad()
            losses = [mean_loss(model, part) for part in parts]
            if joined == "added":
                for one in losses:
                    one.backward()
            else:
                found = [torch.autograd.grad(one, list(model.parameters())) for one in losses]
                for p, a, b in zip(model.parameters(), *found, strict=True):
                    p.grad = (a + b) / 2
            optimizer.step()
            doctor.step(torch.stack(losses).mean().detach(), parts)
    assert ("accumulation-not-divided" in alarms(doctor)) == (joined == "added")


@pytest.mark.parametrize("stage", [True, False])
def test_other_data_from_another_rate_on(stage: bool) -> None:
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def rows(step: int) -> tuple[Tensor, Tensor]:
        low = 0 if step < 24 else VOCAB // 2
        ids = torch.randint(low, low + VOCAB // 2, (8, 17))
        return ids[:, :-1], ids[:, 1:]

    def rate(step: int) -> None:
        if stage and step == 24:
            optimizer.param_groups[0]["lr"] = 0.02

    doctor = looped(model, 44, rows, mean_loss, optimizer, before=rate)
    assert "data-sorted" in [one.rule for one in doctor.findings]
    assert ("data-sorted" in alarms(doctor)) != stage


@pytest.mark.parametrize(
    ("factor", "small", "trained", "is_said"),
    [
        (1.0, False, False, True),
        (32**-0.5, False, False, True),  # by the model's width, not the head's: off by 2 alone
        (1.0, True, False, False),
        (1.0, False, True, False),
    ],
)
def test_a_factor_that_weights_were_made_for(factor: float, small: bool, trained: bool, is_said: bool) -> None:
    """T5 does not divide scores: its queries are drawn smaller by the root of the width; and weights learn to."""
    model = Decoder()
    for block in model.blocks:
        block.scale = factor
        with torch.no_grad():
            block.qkv.weight[:32] /= 4 if small else 1
            block.qkv.bias.zero_()
    if trained:
        ids = torch.randint(0, VOCAB, (6, 25))
        tuned = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(40):
            tuned.zero_grad()
            mean_loss(model, (ids[:, :-1], ids[:, 1:])).backward()
            tuned.step()
    doctor = looped(model, 1, batch, mean_loss, torch.optim.SGD(model.parameters(), 1e-3))
    found = [one for one in doctor.findings if one.rule == "scores-not-scaled"]
    assert [(one.severity, one.is_said) for one in found] == [("notice", is_said)]


@pytest.mark.parametrize("rises", [True, False])
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_rate_that_is_zero_until_moments_are_there(rises: bool, by_hand: bool) -> None:
    model = net(6, 16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.0 if by_hand else 1e-2)
    shape = lambda step: float(rises and step >= 10)  # noqa: E731
    schedule = None if by_hand else torch.optim.lr_scheduler.LambdaLR(optimizer, shape)
    with limpid.watch(model, optimizer, scheduler=schedule, say=False) as doctor:
        for step in range(24):
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            elif rises and step >= 9:
                optimizer.param_groups[0]["lr"] = 1e-2
            doctor.step(loss, given)
    assert ("learning-rate-zero" in alarms(doctor)) != rises


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_likelihood_is_maximised(maximize: bool, sign: int) -> None:
    """Its negative lowered, or itself raised: anything else makes the targets rarer."""
    optimizer = lambda model: torch.optim.SGD(model.parameters(), 1e-2, maximize=maximize)  # noqa: E731
    model = Decoder()
    doctor = looped(model, 8, batch, lambda m, b: sign * mean_loss(m, b), optimizer(model))
    assert ("gradient-ascent" in alarms(doctor)) == (maximize == (sign == 1))


class Tone(nn.Module):
    """transformers' encoder, which brings a pooler along, with a head of one's own."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        self.body = transformers.BertModel(transformers.BertConfig(vocab_size=VOCAB, **sizes))
        self.head, self.pooled = nn.Linear(32, 3), pooled

    def forward(self, input_ids: Tensor) -> Tensor:
        made = self.body(input_ids)
        return self.head(made.pooler_output if self.pooled else made.last_hidden_state.mean(1))


@pytest.mark.parametrize("pooled", [True, False])
def test_a_pooler_that_nothing_reads(pooled: bool) -> None:
    model = Tone(pooled)
    rows = lambda step: (torch.randint(0, VOCAB, (8, 12)), torch.randint(0, 3, (8,)))  # noqa: E731
    loss = lambda m, b: F.cross_entropy(m(b[0]), b[1])  # noqa: E731
    doctor = looped(model, 6, rows, loss, torch.optim.AdamW(model.parameters(), 1e-3))
    found = [one.severity for one in doctor.findings if one.rule == "gradient-cut"]
    assert found == ([] if pooled else ["notice"])
