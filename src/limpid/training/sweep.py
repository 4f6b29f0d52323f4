"""Train the runs of a sweep, the longest first, so that all of them end in the time given; go on where it stopped."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

from limpid.config import TrainConfig
from limpid.config.options import from_dict
from limpid.errors import ConfigError
from limpid.files import write_atomically
from limpid.planning.laws.sweep import (
    Sweep,
    SweepRun,
    TimeModel,
    largest_that_fits,
    shortened_to_fit,
    step_flops,
    train_config,
)
from limpid.reporter import SILENT, Reporter
from limpid.run import Run
from limpid.run_folder import remove_run
from limpid.terminal import counted
from limpid.training.loop import Diverged
from limpid.training.time_budget import StepBudget

TRAINING_SHARE = 0.9
"""Of the time, for training; fitting the law takes the rest."""
TRIAL_STEPS, TRIAL_EVAL_BATCHES = 8, 2


class Train(Protocol):
    """Whoever trains one run to its end: `limpid.train`."""

    def __call__(self, config: TrainConfig, name: str, *, step_budget: StepBudget | None = None) -> Run: ...


def measure_time_model(sweep: Sweep, train: Train) -> TimeModel:
    """The speed of this machine, from a small and a larger trial."""
    trials = (SweepRun("small", 2, 64, TRIAL_STEPS), SweepRun("large", 6, 256, TRIAL_STEPS))
    seconds, around = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for trial in trials:
            began = time.perf_counter()
            config = train_config(trial, sweep)
            config = replace(config, run=replace(config.run, eval_batches=TRIAL_EVAL_BATCHES))
            run = train(config, str(Path(folder) / trial.name))
            steps = [line["seconds"] for line in run.read_metrics().steps]
            seconds.append(statistics.median(steps[2:]))
            around = time.perf_counter() - began - sum(steps) - TRIAL_EVAL_BATCHES / 3 * seconds[-1]
    (first, second) = (trial.num_layers for trial in trials)
    (small, large) = (step_flops(trial.num_layers, trial.d_model) for trial in trials)
    per_layer = max(0.0, (seconds[0] * large - seconds[1] * small) / (first * large - second * small))
    return TimeModel(max(0.0, around), per_layer, max(1e-15, (seconds[1] - per_layer * second) / large))


def train_all(sweep: Sweep, train: Train, reporter: Reporter = SILENT) -> tuple[list[Run], list[str]]:
    """Train the runs, the longest first; returns those that were finished, and what happened to the others.

    Where they take longer than was predicted, those that are still to come are shortened, and left out at last.
    A second call goes on with them.
    Raises  ConfigError when the time does not suffice; Interrupted (everything is saved)
    """
    deadline = time.perf_counter() + TRAINING_SHARE * 60 * sweep.minutes
    planned, speed = _planned_runs(sweep, train, deadline)
    runs = {one.name: Run(sweep.folder / one.name) for one in planned}
    finished = [one for one in planned if _is_finished(runs[one.name], one.steps)]
    waiting = [one for one in planned if one not in finished]
    left_out, notes = [], []
    spent = predicted = 0.0
    while waiting:
        slower = spent / predicted if predicted else 1.0
        whole, one = waiting[0], shortened_to_fit(waiting, (deadline - time.perf_counter()) / slower, speed)
        del waiting[0]
        if one is None:
            left_out.append(whole.name)
            continue
        planned[planned.index(whole)] = one
        _write_plan(sweep, planned, speed)
        remove_run(runs[one.name])  # what an attempt before left
        began = time.perf_counter()
        finish_seconds = slower * speed.of(replace(one, steps=0))
        budget = StepBudget(deadline - slower * speed.total(waiting), finish_seconds, most_steps=one.steps)
        try:
            run = train(train_config(one, sweep), str(runs[one.name].path), step_budget=budget)
        except Diverged as error:
            notes.append(f"{one.name} is left out: {error}")
            continue
        trained = replace(one, steps=run.read_config().run.max_steps)
        planned[planned.index(one)] = trained
        spent, predicted = spent + time.perf_counter() - began, predicted + speed.of(trained)
        finished.append(trained)
        took = time.perf_counter() - began
        reporter.progress("training runs", len(finished), len(planned))
        reporter.note(f"{_described(trained)} in {took:.1f} s: {len(finished)} of {len(planned)} runs")
    _write_plan(sweep, planned, speed)
    if left_out:
        notes.append(f"{sweep.minutes:g} minutes are over: {len(finished)} of {len(planned)} runs were trained, left "
                     f"out are {', '.join(left_out)}; the same command goes on with them")  # fmt: skip
    return [runs[one.name] for one in finished], notes


def _described(one: SweepRun) -> str:
    return f"{one.name}: {counted(one.num_layers, 'layer')} × {one.d_model}, {one.steps:,} steps"


def _planned_runs(sweep: Sweep, train: Train, deadline: float) -> tuple[list[SweepRun], TimeModel]:
    """The runs of this sweep: as planned when it began, or planned now."""
    file = sweep.folder / "sweep.json"
    if file.is_file():
        plan = json.loads(file.read_text("utf-8"))
        if plan["asked"] != _asked(sweep):
            raise ConfigError(
                f"{sweep.folder} holds a sweep with other options ({plan['asked']}): choose another --name"
            )
        return [from_dict(SweepRun, one) for one in plan["runs"]], from_dict(TimeModel, plan["speed"])
    if sweep.folder.is_dir() and any(sweep.folder.iterdir()):
        raise ConfigError(f"{sweep.folder} holds something else than a sweep: choose another --name")
    speed = measure_time_model(sweep, train)
    planned = largest_that_fits(deadline - time.perf_counter(), sweep.budgets, sweep.sizes, speed)
    planned.sort(key=speed.of, reverse=True)
    _write_plan(sweep, planned, speed)
    return planned, speed


def _asked(sweep: Sweep) -> dict[str, object]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(sweep).items()}


def _write_plan(sweep: Sweep, planned: Sequence[SweepRun], speed: TimeModel) -> None:
    document = {"asked": _asked(sweep), "speed": asdict(speed), "runs": [asdict(one) for one in planned]}
    write_atomically(sweep.folder / "sweep.json", (json.dumps(document, indent=1) + "\n").encode())


def _is_finished(run: Run, steps: int) -> bool:
    return run.config_file.is_file() and any(line["step"] == steps for line in run.read_metrics().evaluations)
