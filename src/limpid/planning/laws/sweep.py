"""Which runs a scaling law is fitted to: sizes and tokens per budget of compute, as many as end in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated

from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.domain import Positive, Whole, Within
from limpid.config.options import Checked
from limpid.errors import ConfigError
from limpid.planning.flops import flops_per_token
from limpid.planning.parameters import parameter_count
from limpid.run import RUNS

VOCABULARY = 512
"""Tokens: small, so that small models are not all embedding."""
CONTEXT, BATCH = 128, 16
D_HEAD = 16
TOKENS_PER_PARAMETER = 20
"""Where the best size is expected. Source: Hoffmann et al. 2022, table 3, arXiv:2203.15556."""
SIZE_SPREAD = 3.0
"""Sizes of one budget reach from the expected best one divided by this to that times this."""
COMPUTE_RATIO = 4
"""Each budget of compute over the one before."""
FEWEST_STEPS = 30
EVAL_BATCHES = 32
"""Batches of held-out text that a run's loss is measured on."""


@dataclass(frozen=True)
class Sweep(Checked):
    """What is trained, and for how long."""

    paths: tuple[str, ...] = field(default=(), metadata={"positional": "PATH"})
    """Text to train on, as for `limpid train`; none is the Python standard library's own text."""
    minutes: Positive = 10.0
    """Time for all runs together, minutes."""
    budgets: Annotated[int, Within("[2, inf)", "exponents need two budgets of compute")] = 3
    """Budgets of compute, each four times the one before."""
    sizes: Annotated[int, Within("[3, inf)", "the best size lies between others")] = 4
    """Sizes per budget, around where the best one is expected."""
    name: str = "sweep"
    """Folder under runs/ for the runs; a sweep that was broken off goes on where it stopped."""
    seed: Whole = 0
    """Of weights, batches and resampling."""

    @property
    def folder(self) -> Path:
        """Where its runs lie."""
        return RUNS / self.name


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    name: str
    num_layers: int
    d_model: int
    steps: int


def model_config(num_layers: int, d_model: int) -> ModelConfig:
    """A model of the sweep, of one shape."""
    return ModelConfig(
        vocab_size=VOCABULARY,
        context_length=CONTEXT,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=d_model // D_HEAD,
    )


@cache
def parameters_of_shape(num_layers: int, d_model: int) -> int:
    """Parameters of one shape."""
    return parameter_count(model_config(num_layers, d_model))


@cache
def shapes_to_choose_from() -> tuple[tuple[int, int], ...]:
    """Layers and widths to choose sizes from: about one layer per 40 to 56 features, as published models keep it."""
    return tuple((layers, d) for d in range(16, 1025, 16) for layers in {max(1, round(d / 56)), max(2, round(d / 40))})


def nearest_shape(parameters: float, taken: Sequence[tuple[int, int]] = ()) -> tuple[int, int]:
    """The shape, of those that are left, whose count is nearest to a number of parameters."""
    left = [shape for shape in shapes_to_choose_from() if shape not in taken]
    return min(left, key=lambda shape: abs(math.log(parameters_of_shape(*shape) / parameters)))


def sweep_runs(compute: float, budgets: int, sizes: int) -> list[SweepRun]:
    """The runs of a sweep whose smallest budget is `compute` FLOPs, 6 N D each."""
    runs = []
    for budget in range(budgets):
        c = compute * COMPUTE_RATIO**budget
        middle = math.sqrt(c / 6 / TOKENS_PER_PARAMETER)
        shapes: list[tuple[int, int]] = []
        for place in range(sizes):
            shapes.append(nearest_shape(middle * SIZE_SPREAD ** (2 * place / max(1, sizes - 1) - 1), shapes))
        for number, shape in enumerate(shapes):
            tokens = c / 6 / parameters_of_shape(*shape)
            steps = max(FEWEST_STEPS, round(tokens / (BATCH * CONTEXT)))
            runs.append(SweepRun(f"c{budget + 1}-n{number + 1}", *shape, steps))
    return runs


@dataclass(frozen=True)
class TimeModel:
    """What a run takes here, seconds: a part of every run, of every layer in a step, and of every FLOP."""

    per_run: float
    per_layer: float
    per_flop: float

    def step(self, num_layers: int, d_model: int) -> float:
        """Seconds of one step."""
        return self.per_layer * num_layers + self.per_flop * step_flops(num_layers, d_model)

    def of(self, run: SweepRun) -> float:
        """Seconds of a whole run; a batch that is only evaluated takes a third of a step."""
        return self.per_run + (run.steps + EVAL_BATCHES / 3) * self.step(run.num_layers, run.d_model)

    def total(self, runs: Sequence[SweepRun]) -> float:
        """Seconds of several runs."""
        return sum(map(self.of, runs))


@cache
def step_flops(num_layers: int, d_model: int) -> int:
    """FLOPs of one step, forward and backward."""
    return 3 * flops_per_token(model_config(num_layers, d_model), CONTEXT) * BATCH * CONTEXT


def largest_that_fits(seconds: float, budgets: int, sizes: int, speed: TimeModel) -> list[SweepRun]:
    """The sweep with the most compute whose predicted time stays within `seconds`.

    Raises  ConfigError when even the smallest one takes longer
    """
    low, high = 1e9, 1e24
    smallest = speed.total(sweep_runs(low, budgets, sizes))
    if smallest > seconds:
        raise ConfigError(
            f"the smallest sweep takes about {smallest / 60:.1f} minutes here, and {max(0.0, seconds / 60):.1f} are "
            "left to train: give more --minutes, or fewer --budgets or --sizes"
        )
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        if speed.total(sweep_runs(middle, budgets, sizes)) > seconds:
            high = middle
        else:
            low = middle
    return sweep_runs(low, budgets, sizes)


def train_config(run: SweepRun, sweep: Sweep) -> TrainConfig:
    """Each run has its own whole schedule: a law is about finished runs.

    Warm-up, stable, decay lets a run that takes too long end early and whole. Source: Hägele et al. 2024,
    arXiv:2405.18392.
    """
    return TrainConfig(
        model=model_config(run.num_layers, run.d_model),
        data=DataConfig(paths=sweep.paths, tokenizer_vocab_size=VOCABULARY),
        update=UpdateConfig(warmup_steps=max(5, run.steps // 20), schedule="warmup_stable_decay"),
        run=RunConfig(max_steps=run.steps, batch_size=BATCH, eval_steps=0, eval_batches=EVAL_BATCHES, save_steps=0,
                      save_total_limit=1, seed=sweep.seed),
    )  # fmt: skip


def shortened_to_fit(waiting: Sequence[SweepRun], seconds: float, speed: TimeModel) -> SweepRun | None:
    """The first of the runs that wait, as long as all of them may be to end in time; None when it cannot."""
    standing = speed.total([replace(run, steps=0) for run in waiting])
    share = (seconds - standing) / (speed.total(waiting) - standing)
    first = waiting[0]
    first = replace(first, steps=min(first.steps, max(FEWEST_STEPS, int(share * first.steps))))
    return first if speed.of(first) <= seconds else None
