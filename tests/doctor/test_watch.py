"""While it trains: the loop is seen, not changed; each fault is named, root cause first."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import limpid
from doctor.bench import VOCAB, Decoder, Loop, batch, groups, mean_loss, rules
from doctor.loop_faults import (
    FAULTS,
    no_clear,
)
from limpid.errors import ConfigError

STEPS = 40


def test_losses_are_the_same_to_the_bit_with_and_without() -> None:
    watched, doctor = Loop().run()
    alone = Loop()
    plain = []
    for alone.number in range(STEPS):
        plain.append(alone.step()[0])
    assert watched == plain
    assert rules(doctor.findings) == []
    assert doctor.skipped == {}
    assert doctor.steps == STEPS


def test_nothing_need_be_told() -> None:
    """As a context manager alone, loss, inputs and steps are seen through the calls themselves."""
    losses, doctor = Loop().run(tell=False)
    assert doctor.steps == STEPS
    assert doctor.history.losses.all.tolist() == pytest.approx(losses)
    assert rules(doctor.findings) == []


@pytest.mark.parametrize("before", [False, True])
def test_step_may_be_told_before_or_after_the_update(before: bool) -> None:
    loop = Loop()
    with limpid.watch(loop.model, loop.optimizer, say=False) as doctor:
        for number in range(8):
            loss = mean_loss(loop.model, batch(number))
            loss.backward()
            if before:
                doctor.step(loss, batch(number))
            loop.optimizer.step()
            if not before:
                doctor.step(loss, batch(number))
            loop.optimizer.zero_grad()
    assert doctor.steps == 8
    assert doctor.history.losses.all[0] == pytest.approx(math.log(VOCAB), abs=0.1)
    assert rules(doctor.findings) == []


def test_what_was_wrapped_is_unwrapped() -> None:
    loop = Loop()
    originals = (torch.autograd.backward, F.cross_entropy, torch.nn.utils.clip_grad._clip_grads_with_norm_)
    loop.run(3)
    assert originals == (torch.autograd.backward, F.cross_entropy, torch.nn.utils.clip_grad._clip_grads_with_norm_)
    assert "zero_grad" not in vars(loop.optimizer)
    assert not loop.model._forward_hooks
    assert not loop.model._forward_pre_hooks


def test_an_error_inside_the_doctor_never_stops_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from limpid.doctor import doctor as module
    from limpid.doctor import update_sample

    def broken(*_: Any) -> Any:
        raise RuntimeError("broken check")

    monkeypatch.setattr(module, "functions", lambda phase, rules: [broken])
    monkeypatch.setattr(update_sample, "before", broken)
    losses, doctor = Loop().run(5)
    assert len(losses) == 5
    assert "RuntimeError: broken check" in doctor.skipped.values()


@pytest.mark.parametrize(
    ("break_it", "rule", "k", "by"), FAULTS, ids=[f"{fault.__name__} {rule}" for fault, rule, _, _ in FAULTS]
)
def test_a_fault_of_the_loop_is_named_first_and_soon(
    break_it: Callable[[Loop], None], rule: str, k: int, by: int
) -> None:
    loop = Loop(k=k)
    break_it(loop)
    _, doctor = loop.run(max(STEPS, by + 2))
    assert rules(doctor.findings)[0] == rule
    assert next(f.step for f in doctor.findings if f.rule == rule) <= by


def test_what_has_long_been_well_is_looked_at_less_often() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    looks = []
    with limpid.watch(model, optimizer, say=False, examine=False, rules=["weights-never-change"]) as doctor:
        for step in range(1, 731):
            looks += [step] * doctor.recorder.record.sampled
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            doctor.step(1.0)
    expected = [1, 2, 3, *range(10, 201, 10), *range(225, 501, 25), 600, 700]
    assert looks == expected


def test_a_batch_that_the_loop_keeps_is_learned_on_purpose() -> None:
    loop, kept = Loop(), batch(0)
    loop.batch = lambda number: kept
    _, doctor = loop.run()
    assert rules(doctor.findings) == []
    assert "batch-repeats" in [f.rule for f in doctor.findings]


def test_gradients_that_wait_for_their_own_clearing_are_no_leftovers() -> None:
    """Another loss goes backward through the model between the steps, as in adversarial training."""
    loop = Loop()

    def step() -> tuple[float, list[Any]]:
        loop.optimizer.zero_grad()
        given = batch(loop.number)
        loss = loop.loss(given)
        loss.backward()
        loop.optimizer.step()
        loop.scheduler.step()
        return float(loss.detach()), [given]

    loop.step = step
    with limpid.watch(loop.model, loop.optimizer, scheduler=loop.scheduler, say=False) as doctor:
        for loop.number in range(5):
            doctor.step(*loop.step())
            mean_loss(loop.model, batch(99)).backward()
    assert rules(doctor.findings) == []


@pytest.mark.parametrize("at", [4, 20])
def test_a_rate_that_is_raised_a_hundredfold(at: int) -> None:
    loop = Loop(rate=1e-3)

    def step() -> tuple[float, list[Any]]:
        if loop.number == at:
            for group in loop.optimizer.param_groups:
                group["initial_lr"] *= 300
            loop.scheduler.base_lrs = [rate * 300 for rate in loop.scheduler.base_lrs]
        return Loop.step(loop)

    loop.step = step
    _, doctor = loop.run()
    assert rules(doctor.findings)[0] == "learning-rate-too-high"
    assert at < doctor.findings[0].step <= at + 12


def test_clipping_before_unscaling() -> None:
    model = Decoder()
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    with limpid.watch(model, optimizer, scaler=scaler, say=False) as doctor:
        for number in range(4):
            loss = mean_loss(model, batch(number))
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            doctor.step(loss, batch(number))
    assert rules(doctor.findings)[0] == "clipped-before-unscaling"
    assert doctor.findings[0].step == 1


def test_a_pass_that_fails_is_not_watched_for_ever() -> None:
    loop = Loop()
    with limpid.watch(loop.model, loop.optimizer, say=False) as doctor:
        for error in (ValueError, KeyboardInterrupt):
            handle = loop.model.head.register_forward_pre_hook(fails(error))
            with pytest.raises(error):
                loop.model(batch(0)[0])
            handle.remove()
            loop.model(batch(0)[0])
            assert torch.overrides._get_current_function_mode_stack() == []
        loop.model.head.register_forward_pre_hook(fails(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            loop.model(batch(0)[0])
    assert torch.overrides._get_current_function_mode_stack() == []
    assert doctor.closed


def fails(error: type[BaseException]) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        raise error("in the middle of a forward pass")

    return hook


def test_findings_are_written_as_they_come(tmp_path: Any) -> None:
    import json

    loop = Loop()
    no_clear(loop)
    loop.run(4, output=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    reported = [line for line in lines if line["severity"] != "notice"]
    assert [line["rule"] for line in reported] == ["gradients-not-cleared"]
    assert reported[0]["refuted_by"]


def test_a_watched_model_that_nobody_holds_is_freed() -> None:
    alive = []
    for _ in range(2):
        loop = Loop()
        limpid.watch(loop.model, loop.optimizer, say=False)  # never closed
        loop.step()
        alive.append(weakref.ref(loop.model))
        del loop
    gc.collect()
    assert [model() for model in alive] == [None, None]


def test_what_is_no_model_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"model is 'model': expected Module \(torch\)"):
        limpid.watch("model", None)
