"""Training for a given time: the size follows from the law and the speed, the end from the clock."""

import csv
import dataclasses
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.options import from_dict
from limpid.config.recipes import RECIPES, TIMED, recipe
from limpid.errors import ConfigError
from limpid.model.families import family_of
from limpid.planning import parameter_count
from limpid.reporter import SILENT
from limpid.schedule import learning_rate
from limpid.training import time_budget
from limpid.training.time_budget import EXIT_SECONDS, Deadline, StepBudget, decays_next

CPU = torch.device("cpu")
CONFIG = TrainConfig(
    ModelConfig(vocab_size=300, context_length=32),
    update=UpdateConfig(schedule="warmup_stable_decay", decay_fraction=0.5, warmup_steps=4),
    run=RunConfig(precision="fp32", batch_size=2, compile="off", gradient_checkpointing="off", max_steps=50),
)


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of exactly 100 GFLOP/s, at whatever it does."""
    monkeypatch.setattr(
        time_budget,
        "measured_step_seconds",
        lambda config, device: 0.003 * config.model.num_layers + 2 * time_budget.estimated_step_seconds(config, device),
    )
    monkeypatch.setattr("limpid.training.autotune.measured_peak", lambda dtype, device: 1e11)


@pytest.mark.usefixtures("speed")
def test_more_time_trains_larger_models_on_more_tokens() -> None:
    chosen = [
        time_budget.best_size(CONFIG, seconds, 10**12, CPU, size_given=False) for seconds in (30, 300, 3000, 30000)
    ]
    sizes = [parameter_count(choice.config.model) for choice in chosen]
    tokens = [choice.config.run.max_steps for choice in chosen]
    assert sizes == sorted(set(sizes))
    assert tokens == sorted(set(tokens))
    assert all(choice.measured for choice in chosen)


@pytest.mark.usefixtures("speed")
def test_the_speed_of_sizes_that_were_not_measured_follows_from_two_that_were() -> None:
    configs = [
        dataclasses.replace(CONFIG, model=time_budget.with_width(CONFIG.model, width)) for width in time_budget.WIDTHS
    ]
    truth = [time_budget.measured_step_seconds(config, CPU) for config in configs]
    assert time_budget.predicted_step_seconds(configs, {0: truth[0], 3: truth[3]}, CPU) == pytest.approx(
        truth, rel=1e-9
    )


@pytest.mark.usefixtures("speed")
def test_little_text_asks_for_a_smaller_model_never_a_larger_one() -> None:
    plenty, little = (time_budget.best_size(CONFIG, 3000, tokens, CPU, size_given=False) for tokens in (10**12, 10**5))
    assert little.loss > plenty.loss
    assert time_budget.effective_tokens(4e5, 1e5) < 4e5


@pytest.mark.usefixtures("speed")
def test_a_given_size_is_kept() -> None:
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, d_model=96, num_heads=6, d_ff=256))
    chosen = time_budget.best_size(config, 60, 10**9, CPU, size_given=True)
    assert chosen.config.model == config.model
    assert chosen.config.run.max_steps == int(60 / chosen.step_seconds)


@pytest.mark.usefixtures("speed")
@pytest.mark.parametrize(("text", "forgotten"), [(3_200, 1 / 50), (6_400, 1 / 100), (10**9, 0), (64, 1 / 50)])
def test_weights_are_an_average_over_one_pass_of_a_text_that_comes_again(text: int, forgotten: float) -> None:
    """A text of 3,200 tokens is read in 50 steps of 64; the shortest text forgets no more than 2 % a step."""
    deadline = Deadline(time.perf_counter() + time_budget.FINISH_SECONDS + 20, size_given=True, decay_given=False)
    config, _ = deadline.fit(CONFIG, text, CPU, SILENT)
    assert config.run.max_steps > 100
    assert config.update.learning_rate * config.update.weight_decay == pytest.approx(forgotten, rel=0.05)
    kept, _ = dataclasses.replace(deadline, decay_given=True).fit(CONFIG, text, CPU, SILENT)
    assert kept.update.weight_decay == CONFIG.update.weight_decay


def test_repeated_text_is_worth_what_the_paper_says() -> None:
    """Four epochs are nearly as good as fresh text; beyond sixteen little is added."""
    assert time_budget.effective_tokens(50, 100) == 50
    assert time_budget.effective_tokens(400, 100) == pytest.approx(372, rel=0.01)
    assert time_budget.effective_tokens(10**6, 100) == pytest.approx(100 + 1539)


def test_a_step_is_really_measured() -> None:
    small = dataclasses.replace(CONFIG, model=time_budget.with_width(CONFIG.model, 64))
    large = dataclasses.replace(CONFIG, model=time_budget.with_width(CONFIG.model, 384))
    assert 0 < time_budget.measured_step_seconds(small, CPU) < time_budget.measured_step_seconds(large, CPU)


def runs_on_file(longer: bool) -> list[list[float]]:
    """Parameters, tokens and losses of the runs that the law is fitted to, up to 8e12 FLOPs, or of the longer ones."""
    with (Path(__file__).parents[2] / "benchmarks" / "small_scale.csv").open() as file:
        rows = [[float(row[name]) for name in ("parameters", "tokens", "loss")] for row in csv.DictReader(file)]
    return [row for row in rows if (6 * row[0] * row[1] > 8e12) == longer]


def test_the_law_is_that_of_the_runs_on_file() -> None:
    from limpid.planning.laws.fit import fit, points_of

    found = fit(points_of(*map(list, zip(*runs_on_file(longer=False), strict=True))), resamples=20)
    for name, value in time_budget.LAW.constants.items():
        assert found.law.constants[name] == pytest.approx(value, rel=0.02)


def test_the_law_foretells_longer_runs_than_it_was_fitted_to() -> None:
    longer = runs_on_file(longer=True)
    assert len(longer) == 10
    for parameters, tokens, loss in longer:
        assert time_budget.LAW.loss(parameters, tokens) == pytest.approx(loss, abs=0.1)


@dataclasses.dataclass
class Simulated:
    """A run by a clock that every step moves on: the rates, and the number of steps that each was taken with."""

    rates: list[float]
    numbers: list[int]
    ended: float


def simulated(
    monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int, float], float], deadline: float = 160.0
) -> Simulated:
    """Steps that take `seconds(step, clock)`, from 100 on the clock."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    budget, config = StepBudget(deadline, finish_seconds=1.0, write_seconds=0.5), CONFIG
    made, step = Simulated([], [], 0.0), 0
    while step < config.run.max_steps:
        step += 1
        made.numbers.append(config.run.max_steps)
        made.rates.append(learning_rate(step, config.run.max_steps, config.update))
        now[0] += seconds(step, now[0])
        config = budget.adjust(config, step)
    assert budget.final
    made.ended = now[0]
    return made


LOADS = {
    "none": lambda step, clock: 0.25,
    "from the start": lambda step, clock: 0.5 if step > 20 else 0.25,
    "in the decay": lambda step, clock: 0.6 if clock > 140 else 0.25,
    "at the very end": lambda step, clock: 1.0 if clock > 155 else 0.25,
    "until the decay": lambda step, clock: 0.7 if clock < 145 else 0.25,
    "now and then": lambda step, clock: 2.0 if step % 17 == 0 else 0.2,
}
"""Seconds of a step by its number and the clock."""


@pytest.mark.parametrize("load", LOADS)
def test_a_run_ends_by_the_clock_whatever_else_the_processors_do(load: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulated(monkeypatch, LOADS[load])
    longest = max(LOADS[load](step, clock) for step in range(1, 60) for clock in range(100, 160))
    assert 158.5 - EXIT_SECONDS - 3 * longest <= made.ended <= 158.5 - EXIT_SECONDS + 3 * longest
    assert made.rates[-1] < 0.15 * max(made.rates)


@pytest.mark.parametrize("load", LOADS)
def test_the_rate_falls_with_the_time_that_is_left(load: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step follows another number than the one that is written down with it, and none goes up again by much."""
    made = simulated(monkeypatch, LOADS[load])
    of_log = [learning_rate(step, number, CONFIG.update) for step, number in enumerate(made.numbers, 1)]
    assert made.rates == of_log
    falling = made.rates[made.rates.index(max(made.rates)) :]
    assert all(after <= before + 0.1 * max(made.rates) for before, after in itertools.pairwise(falling))


def test_the_decay_begins_where_the_schedule_says() -> None:
    for steps in (10, 37, 200):
        config = dataclasses.replace(CONFIG, run=dataclasses.replace(CONFIG.run, max_steps=steps))
        rates = [learning_rate(step, steps, config.update) for step in range(1, steps + 1)]
        first = next(i for i in range(4, steps) if rates[i] < rates[i - 1]) + 1
        assert not decays_next(config, first - 2)
        assert decays_next(config, first - 1)


def test_recipes_are_configurations() -> None:
    for name in RECIPES:
        config = from_dict(TrainConfig, recipe(name))
        assert config.update.optimizer == "muon"
        assert family_of(dataclasses.replace(config.model, vocab_size=64)).name == "qwen3"  # transformers can load it
    assert from_dict(TrainConfig, TIMED).update.schedule == "warmup_stable_decay"
    with pytest.raises(ConfigError, match="fast"):
        recipe("slow")
