"""The learning rate against PyTorch's and transformers' schedules, against its second derivation, and at its ends."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from transformers import get_scheduler

from limpid.config import UpdateConfig
from limpid.config.sections import ScheduleName
from limpid.maths import schedule as derived
from limpid.schedule import learning_rate

STEPS, WARMUP, PEAK = 97, 13, 0.37


def ours(schedule: str, **options) -> list[float]:
    update = UpdateConfig(learning_rate=PEAK, schedule=schedule, warmup_steps=WARMUP, **options)
    return [learning_rate(step, STEPS, update) for step in range(1, STEPS + 1)]


def theirs(name: str, **options) -> list[float]:
    """transformers counts the rate that follows step s as that of s; step 0 is ours minus one."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = get_scheduler(name, optimizer, WARMUP, STEPS, scheduler_specific_kwargs=options or None)
    rates = []
    for _ in range(STEPS):
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    return rates


@pytest.mark.parametrize(
    ("schedule", "options", "name", "their_options"),
    [
        ("cosine", {"min_learning_rate_ratio": 0}, "cosine", {}),
        ("linear", {"min_learning_rate_ratio": 0}, "linear", {}),
        ("constant", {}, "constant_with_warmup", {}),
        (
            "cosine_restarts",
            {"min_learning_rate_ratio": 0, "schedule_cycles": 3},
            "cosine_with_restarts",
            {"num_cycles": 3},
        ),
        ("cosine", {"min_learning_rate_ratio": 0.2}, "cosine_with_min_lr", {"min_lr_rate": 0.2}),
    ],
)
def test_equals_transformers(schedule, options, name, their_options) -> None:
    assert ours(schedule, **options)[:-1] == pytest.approx(theirs(name, **their_options)[:-1], abs=1e-12)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "polynomial", "warmup_stable_decay"])
def test_ends_at_the_floor(schedule: str) -> None:
    assert ours(schedule, min_learning_rate_ratio=0.25)[-1] == pytest.approx(0.25 * PEAK)


def test_warm_up_reaches_the_peak_at_its_last_step_and_spends_no_step_at_zero() -> None:
    rates = ours("constant")
    assert rates[0] == pytest.approx(PEAK / WARMUP)
    assert rates[WARMUP - 1] == pytest.approx(PEAK)


def test_stable_then_linear_decay() -> None:
    rates = ours("warmup_stable_decay", min_learning_rate_ratio=0, decay_fraction=0.5)
    half = WARMUP + (STEPS - WARMUP) // 2
    assert rates[WARMUP : half - 1] == pytest.approx([PEAK] * (half - 1 - WARMUP))
    assert rates[half + 20] == pytest.approx(PEAK * (STEPS - half - 21) / (STEPS - half))


def test_polynomial_by_hand() -> None:
    rates = ours("polynomial", min_learning_rate_ratio=0, schedule_power=2)
    assert rates[WARMUP + 41] == pytest.approx(PEAK * (1 - 42 / (STEPS - WARMUP)) ** 2)


@given(
    some.sampled_from(get_args(ScheduleName)),
    some.integers(1, 4000),
    some.integers(0, 300),
    some.floats(0, 1),
    some.integers(1, 60),
    some.floats(0.1, 4),
    some.floats(0, 1),
    some.randoms(use_true_random=False),
)
def test_both_derivations_agree_within_float64(shape, steps, warmup, ratio, cycles, power, fraction, rng) -> None:
    update = UpdateConfig(
        learning_rate=PEAK, schedule=shape, warmup_steps=warmup, min_learning_rate_ratio=ratio,
        schedule_cycles=cycles, schedule_power=power, decay_fraction=fraction,
    )  # fmt: skip
    for step in (1, max(1, warmup), warmup + 1, steps, steps + 1, rng.randint(1, steps)):
        departure = abs(learning_rate(step, steps, update) - derived.learning_rate(step, steps, update))
        assert departure <= derived.learning_rate_rounding(step, steps, update)


def test_every_restart_is_at_its_step() -> None:
    """15/22 · 22 is just below 15 in float64."""
    update = UpdateConfig(
        learning_rate=PEAK, schedule="cosine_restarts", warmup_steps=0, min_learning_rate_ratio=0, schedule_cycles=22
    )
    rates = [learning_rate(step, 22, update) for step in range(1, 23)]
    assert rates == pytest.approx([*[PEAK] * 21, 0.0], abs=1e-15)
    assert math.isclose(learning_rate(14, 44, update), PEAK)
