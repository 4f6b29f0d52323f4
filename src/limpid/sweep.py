"""`limpid plan sweep`: train the runs that a scaling law is fitted to, within a time budget."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.errors import ConfigError
from limpid.options import from_dict, require
from limpid.plan.flops import flops_per_token
from limpid.plan.parameters import parameter_count
from limpid.plan.runs import metrics
from limpid.run import RUNS, Run, write_atomically
from limpid.verbs import PlanSweepFlags

if TYPE_CHECKING:
    from rich.console import Console

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
SHARE = 0.85
"""Of the time that is planned for; evaluation and the first calls of PyTorch take the rest."""
TRIAL_STEPS = 12


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


def seconds_of(runs: Sequence[Planned], per_step: tuple[float, float]) -> float:
    """Predicted time: a part per step and layer that no size changes, and a part per FLOP."""
    return sum(run.steps * step_seconds(run.num_layers, run.d_model, per_step) for run in runs)


def step_seconds(num_layers: int, d_model: int, per_step: tuple[float, float]) -> float:
    overhead, per_flop = per_step
    return overhead * num_layers + per_flop * step_flops(num_layers, d_model)


@cache
def step_flops(num_layers: int, d_model: int) -> int:
    return 3 * flops_per_token(model_of(num_layers, d_model), CONTEXT) * BATCH * CONTEXT


def largest_that_fits(seconds: float, budgets: int, sizes: int, per_step: tuple[float, float]) -> list[Planned]:
    """The sweep with the most compute whose predicted time stays within `seconds`.

    Raises  ConfigError when even the smallest one takes longer
    """
    low, high = 1e9, 1e24
    if seconds_of(runs_of(low, budgets, sizes), per_step) > seconds:
        needed = seconds_of(runs_of(low, budgets, sizes), per_step) / 60 / SHARE
        raise ConfigError(
            f"the smallest sweep takes about {needed:.1f} minutes here: give --minutes, or fewer --budgets"
        )
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        if seconds_of(runs_of(middle, budgets, sizes), per_step) > seconds:
            high = middle
        else:
            low = middle
    return runs_of(low, budgets, sizes)


def config_of(run: Planned, flags: PlanSweepFlags) -> TrainConfig:
    """Each run has its own whole schedule: a law is about finished runs."""
    return TrainConfig(
        model=model_of(run.num_layers, run.d_model),
        data=DataConfig(paths=flags.paths, tokenizer_vocab_size=VOCABULARY),
        update=UpdateConfig(warmup_steps=max(5, run.steps // 20)),
        run=RunConfig(max_steps=run.steps, batch_size=BATCH, eval_steps=0, eval_batches=32, save_steps=0,
                      save_total_limit=1, seed=flags.seed),
    )  # fmt: skip


def measured(flags: PlanSweepFlags, folder: Path) -> tuple[float, float]:
    """Seconds per step and layer, and per FLOP, from a small and a larger trial."""
    import statistics

    from limpid.api import train

    trials = [(2, 64), (6, 256)]
    seconds = []
    for number, shape in enumerate(trials):
        trial = folder / f".trial{number}"
        shutil.rmtree(trial, ignore_errors=True)
        run = train(config_of(Planned("trial", *shape, TRIAL_STEPS), flags), str(trial))
        seconds.append(statistics.median(entry["seconds"] for entry in metrics(run)[2:] if "seconds" in entry))
        shutil.rmtree(trial)
    flops = [step_flops(*shape) for shape in trials]
    (first, second), (small, large) = (layers for layers, _ in trials), flops
    determinant = first * large - second * small
    overhead = max(0.0, (seconds[0] * large - seconds[1] * small) / determinant)
    return overhead, max(1e-15, (seconds[1] - overhead * second) / large)


def sweep(flags: PlanSweepFlags, report: Report | None = None) -> tuple[list[Run], list[str]]:
    """Train the runs; returns those that were finished, and what happened to the others. A second call goes on."""
    from limpid.api import train
    from limpid.training.loop import Diverged, Interrupted

    folder = RUNS / flags.name
    began = time.monotonic()
    planned = _plan(flags, folder)
    finished: list[Run] = []
    notes: list[str] = []
    for number, one in enumerate(planned):
        run = Run(folder / one.name)
        if not _is_finished(run, one.steps):
            if finished and time.monotonic() - began > 60 * flags.minutes:
                notes.append(f"{len(planned) - number} runs were left out: {flags.minutes:g} minutes are over; "
                             "the same command goes on with them")  # fmt: skip
                break
            shutil.rmtree(run.path, ignore_errors=True)
            try:
                train(config_of(one, flags), str(run.path))
            except Interrupted:
                raise ConfigError(f"stopped at {one.name}: the same command goes on from there") from None
            except Diverged as error:
                notes.append(f"{one.name} is left out: {error}")
                continue
        finished.append(run)
        if report is not None:
            report(f"training, {number + 1} of {len(planned)} runs", number + 1, len(planned))
    return finished, notes


def _plan(flags: PlanSweepFlags, folder: Path) -> list[Planned]:
    """The runs of this sweep: as they were planned when it began, or planned now."""
    file = folder / "sweep.json"
    asked = {"paths": list(flags.paths), "minutes": flags.minutes, "budgets": flags.budgets, "sizes": flags.sizes,
             "seed": flags.seed}  # fmt: skip
    if file.is_file():
        kept = json.loads(file.read_text("utf-8"))
        if kept["asked"] != asked:
            raise ConfigError(f"{folder} holds a sweep with other options ({kept['asked']}): choose another --name")
        return [from_dict(Planned, one) for one in kept["runs"]]
    per_step = measured(flags, folder)
    planned = largest_that_fits(SHARE * 60 * flags.minutes, flags.budgets, flags.sizes, per_step)
    document = {"asked": asked, "seconds_per_step_and_layer": per_step[0], "seconds_per_flop": per_step[1],
                "runs": [asdict(one) for one in planned]}  # fmt: skip
    write_atomically(file, (json.dumps(document, indent=1) + "\n").encode())
    return planned


def _is_finished(run: Run, steps: int) -> bool:
    return run.config_file.is_file() and any("eval_loss" in entry and entry["step"] == steps for entry in metrics(run))


def sweep_verb(argv: Sequence[str], console: Console | None = None) -> int:
    """Run `limpid plan sweep`."""
    from rich.console import Console as Screen

    from limpid.flags import given
    from limpid.plan.fit import fit, points_of
    from limpid.plan.runs import points
    from limpid.plan.verb import show_fit
    from limpid.progress import progress

    flags = from_dict(PlanSweepFlags, given("plan sweep", PlanSweepFlags, argv))
    require(flags.minutes > 0, f"minutes is {flags.minutes}: it must be above 0")
    require(flags.budgets >= 2, f"budgets is {flags.budgets}: exponents need at least 2 budgets of compute")
    require(flags.sizes >= 3, f"sizes is {flags.sizes}: the best size lies between others, so give at least 3")
    shown = console or Screen(highlight=False)
    with progress(Screen(stderr=True)) as report:
        runs, notes = sweep(flags, report)
        for note in notes:
            Screen(stderr=True, highlight=False).print(note, soft_wrap=True)
        found = points_of(*zip(*points([str(run.path) for run in runs]), strict=True))
        fitted = fit(found, seed=flags.seed, report=report)
    return show_fit(fitted, flags.compute, str(RUNS / flags.name), flags.json, shown)
