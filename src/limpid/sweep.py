"""`limpid plan sweep`: train the runs that a scaling law is fitted to, within a time budget."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.options import from_dict, require
from limpid.errors import ConfigError
from limpid.plan.flops import flops_per_token
from limpid.plan.parameters import parameter_count
from limpid.plan.runs import metrics
from limpid.run import RUNS, Run, write_atomically

if TYPE_CHECKING:
    from limpid.progress import Report

VOCABULARY = 512
"""Tokens: small, so that small models are not all embedding."""
CONTEXT, BATCH = 128, 16
D_HEAD = 16
TOKENS_PER_PARAMETER = 20
"""Where the best size is expected. Source: Hoffmann et al. 2022, table 3, arXiv:2203.15556."""
SPREAD = 3.0
"""Sizes of one budget reach from the expected best one divided by this to that times this."""
STEP_UP = 4
"""Each budget of compute over the one before."""
FEWEST_STEPS = 30
EVALUATED = 32
"""Batches of held-out text that a run's loss is measured on."""
SHARE = 0.9
"""Of the time, for training; fitting the law takes the rest."""
TRIAL_STEPS, TRIAL_EVALUATED = 8, 2


@dataclass(frozen=True)
class Sweep:
    """What is trained, and for how long."""

    paths: tuple[str, ...] = field(default=(), metadata={"positional": "PATH"})
    """Text to train on, as for `limpid train`; none is the Python standard library's own text."""
    minutes: float = 10.0
    """Time for all runs together, minutes."""
    budgets: int = 3
    """Budgets of compute, each four times the one before."""
    sizes: int = 4
    """Sizes per budget, around where the best one is expected."""
    name: str = "sweep"
    """Folder under runs/ for the runs; a sweep that was broken off goes on where it stopped."""
    seed: int = 0
    """Of weights, batches and resampling."""

    def __post_init__(self) -> None:
        require(0 < self.minutes < math.inf, f"minutes is {self.minutes}: it must be above 0")
        require(self.budgets >= 2, f"budgets is {self.budgets}: exponents need at least 2 budgets of compute")
        require(self.sizes >= 3, f"sizes is {self.sizes}: the best size lies between others, so give at least 3")
        require(self.seed >= 0, f"seed is {self.seed}: it must be 0 or above")

    @property
    def folder(self) -> Path:
        return RUNS / self.name


@dataclass(frozen=True)
class Planned:
    """One run of a sweep."""

    name: str
    num_layers: int
    d_model: int
    steps: int


def model_of(num_layers: int, d_model: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=VOCABULARY,
        context_length=CONTEXT,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=d_model // D_HEAD,
    )


@cache
def size_of(num_layers: int, d_model: int) -> int:
    """Parameters of one shape."""
    return parameter_count(model_of(num_layers, d_model))


@cache
def ladder() -> tuple[tuple[int, int], ...]:
    """Layers and widths to choose sizes from: about one layer per 40 to 56 features, as published models keep it."""
    return tuple((layers, d) for d in range(16, 1025, 16) for layers in {max(1, round(d / 56)), max(2, round(d / 40))})


def chosen(parameters: float) -> tuple[int, int]:
    """The shape whose count is nearest to a number of parameters."""
    return min(ladder(), key=lambda shape: abs(math.log(size_of(*shape) / parameters)))


def runs_of(compute: float, budgets: int, sizes: int) -> list[Planned]:
    """The runs of a sweep whose smallest budget is `compute` FLOPs, 6 N D each."""
    found = []
    for budget in range(budgets):
        c = compute * STEP_UP**budget
        middle = math.sqrt(c / 6 / TOKENS_PER_PARAMETER)
        shapes: list[tuple[int, int]] = []
        for place in range(sizes):
            shape = chosen(middle * SPREAD ** (2 * place / max(1, sizes - 1) - 1))
            shapes += [shape] if shape not in shapes else []
        for number, shape in enumerate(shapes):
            tokens = c / 6 / size_of(*shape)
            steps = max(FEWEST_STEPS, round(tokens / (BATCH * CONTEXT)))
            found.append(Planned(f"c{budget + 1}-n{number + 1}", *shape, steps))
    return found


@dataclass(frozen=True)
class Speed:
    """What a run takes here, seconds: a part of every run, of every layer in a step, and of every FLOP."""

    per_run: float
    per_layer: float
    per_flop: float

    def step(self, num_layers: int, d_model: int) -> float:
        return self.per_layer * num_layers + self.per_flop * step_flops(num_layers, d_model)

    def of(self, run: Planned) -> float:
        """A whole run; a batch that is only evaluated takes a third of a step."""
        return self.per_run + (run.steps + EVALUATED / 3) * self.step(run.num_layers, run.d_model)

    def total(self, runs: Sequence[Planned]) -> float:
        return sum(map(self.of, runs))


@cache
def step_flops(num_layers: int, d_model: int) -> int:
    return 3 * flops_per_token(model_of(num_layers, d_model), CONTEXT) * BATCH * CONTEXT


def largest_that_fits(seconds: float, budgets: int, sizes: int, speed: Speed) -> list[Planned]:
    """The sweep with the most compute whose predicted time stays within `seconds`.

    Raises  ConfigError when even the smallest one takes longer
    """
    low, high = 1e9, 1e24
    smallest = speed.total(runs_of(low, budgets, sizes))
    if smallest > seconds:
        raise ConfigError(
            f"the smallest sweep takes about {smallest / 60:.1f} minutes here, and {max(0.0, seconds / 60):.1f} are "
            "left to train: give more --minutes, or fewer --budgets"
        )
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        if speed.total(runs_of(middle, budgets, sizes)) > seconds:
            high = middle
        else:
            low = middle
    return runs_of(low, budgets, sizes)


def config_of(run: Planned, sweep: Sweep) -> TrainConfig:
    """Each run has its own whole schedule: a law is about finished runs.

    Warm-up, stable, decay lets a run that takes too long end early and whole. Source: Hägele et al. 2024,
    arXiv:2405.18392.
    """
    return TrainConfig(
        model=model_of(run.num_layers, run.d_model),
        data=DataConfig(paths=sweep.paths, tokenizer_vocab_size=VOCABULARY),
        update=UpdateConfig(warmup_steps=max(5, run.steps // 20), schedule="warmup_stable_decay"),
        run=RunConfig(max_steps=run.steps, batch_size=BATCH, eval_steps=0, eval_batches=EVALUATED, save_steps=0,
                      save_total_limit=1, seed=sweep.seed),
    )  # fmt: skip


def measured(sweep: Sweep) -> Speed:
    """The speed of this machine, from a small and a larger trial."""
    from limpid.api import train

    trials = (Planned("small", 2, 64, TRIAL_STEPS), Planned("large", 6, 256, TRIAL_STEPS))
    seconds, around = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for trial in trials:
            began = time.perf_counter()
            config = config_of(trial, sweep)
            config = replace(config, run=replace(config.run, eval_batches=TRIAL_EVALUATED))
            run = train(config, str(Path(folder) / trial.name))
            steps = [entry["seconds"] for entry in metrics(run) if "seconds" in entry]
            seconds.append(statistics.median(steps[2:]))
            around = time.perf_counter() - began - sum(steps) - TRIAL_EVALUATED / 3 * seconds[-1]
    (first, second) = (trial.num_layers for trial in trials)
    (small, large) = (step_flops(trial.num_layers, trial.d_model) for trial in trials)
    per_layer = max(0.0, (seconds[0] * large - seconds[1] * small) / (first * large - second * small))
    return Speed(max(0.0, around), per_layer, max(1e-15, (seconds[1] - per_layer * second) / large))


def in_time(waiting: Sequence[Planned], seconds: float, speed: Speed) -> Planned | None:
    """The first of the runs that wait, as long as all of them may be to end in time; None when it cannot."""
    standing = speed.total([replace(run, steps=0) for run in waiting])
    share = (seconds - standing) / (speed.total(waiting) - standing)
    first = waiting[0]
    first = replace(first, steps=min(first.steps, max(FEWEST_STEPS, int(share * first.steps))))
    return first if speed.of(first) <= seconds else None


def train_all(sweep: Sweep, report: Report | None = None) -> tuple[list[Run], list[str]]:
    """Train the runs, the longest first; returns those that were finished, and what happened to the others.

    Where they take longer than was predicted, those that are still to come are shortened, and left out at last.
    A second call goes on with them.
    Raises  ConfigError when the time does not suffice; Interrupted (everything is saved)
    """
    from limpid.api import train
    from limpid.training.loop import Diverged
    from limpid.training.pace import Pace

    deadline = time.perf_counter() + SHARE * 60 * sweep.minutes
    planned, speed = _plan(sweep, deadline)
    runs = {one.name: Run(sweep.folder / one.name) for one in planned}
    finished = [one for one in planned if _is_finished(runs[one.name], one.steps)]
    waiting = [one for one in planned if one not in finished]
    left_out, notes = [], []
    taken = predicted = 0.0
    while waiting:
        slower = taken / predicted if predicted else 1.0
        asked, one = waiting[0], in_time(waiting, (deadline - time.perf_counter()) / slower, speed)
        del waiting[0]
        if one is None:
            left_out.append(asked.name)
            continue
        planned[planned.index(asked)] = one
        _keep(sweep, planned, speed)
        shutil.rmtree(runs[one.name].path, ignore_errors=True)
        began = time.perf_counter()
        afterwards = slower * speed.of(replace(one, steps=0))
        pace = Pace(deadline - slower * speed.total(waiting), afterwards, most=one.steps)
        try:
            run = train(config_of(one, sweep), str(runs[one.name].path), pace=pace)
        except Diverged as error:
            notes.append(f"{one.name} is left out: {error}")
            continue
        trained = replace(one, steps=run.read_config().run.max_steps)
        planned[planned.index(one)] = trained
        taken, predicted = taken + time.perf_counter() - began, predicted + speed.of(trained)
        finished.append(trained)
        if report is not None:
            report(f"training, {len(finished)} of {len(planned)} runs", len(finished), len(planned))
    _keep(sweep, planned, speed)
    if left_out:
        notes.append(f"{sweep.minutes:g} minutes are over: left out are {', '.join(left_out)}; "
                     "the same command goes on with them")  # fmt: skip
    return [runs[one.name] for one in finished], notes


def _plan(sweep: Sweep, deadline: float) -> tuple[list[Planned], Speed]:
    """The runs of this sweep: as they were planned when it began, or planned now."""
    file = sweep.folder / "sweep.json"
    if file.is_file():
        kept = json.loads(file.read_text("utf-8"))
        if kept["asked"] != _asked(sweep):
            raise ConfigError(
                f"{sweep.folder} holds a sweep with other options ({kept['asked']}): choose another --name"
            )
        return [from_dict(Planned, one) for one in kept["runs"]], from_dict(Speed, kept["speed"])
    speed = measured(sweep)
    planned = largest_that_fits(deadline - time.perf_counter(), sweep.budgets, sweep.sizes, speed)
    planned.sort(key=speed.of, reverse=True)
    _keep(sweep, planned, speed)
    return planned, speed


def _asked(sweep: Sweep) -> dict[str, object]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(sweep).items()}


def _keep(sweep: Sweep, planned: Sequence[Planned], speed: Speed) -> None:
    document = {"asked": _asked(sweep), "speed": asdict(speed), "runs": [asdict(one) for one in planned]}
    write_atomically(sweep.folder / "sweep.json", (json.dumps(document, indent=1) + "\n").encode())


def _is_finished(run: Run, steps: int) -> bool:
    return run.config_file.is_file() and any("eval_loss" in entry and entry["step"] == steps for entry in metrics(run))
