"""A sweep: its runs trained once, ended on time, taken up again."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest

from limpid.api import train
from limpid.console import Console
from limpid.errors import ConfigError
from limpid.planning.laws.runs import points
from limpid.planning.laws.sweep import BATCH, CONTEXT, FEWEST_STEPS, Sweep, SweepRun, TimeModel, model_config
from limpid.planning.parameters import parameter_count
from limpid.reporter import Reporter
from limpid.training.sweep import train_all

HERE = TimeModel(per_run=1.0, per_layer=1e-3, per_flop=1e-11)


def planned(folder: Path, runs: list[SweepRun], speed: TimeModel) -> Sweep:
    """A sweep that was planned before, on its own text."""
    (folder / "text.txt").write_text("".join(f"{n} and {n * n} make {n + n * n}.\n" for n in range(4000)))
    sweep = Sweep(paths=("text.txt",))
    asked = {**dataclasses.asdict(sweep), "paths": ["text.txt"]}
    sweep.folder.mkdir(parents=True)
    plan = {"asked": asked, "speed": dataclasses.asdict(speed), "runs": [dataclasses.asdict(run) for run in runs]}
    (sweep.folder / "sweep.json").write_text(json.dumps(plan))
    return sweep


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sweep_trains_its_runs_once(here: Path) -> None:
    sweep = planned(here, [SweepRun(f"c1-n{n}", 1, 16 * n, 3) for n in (1, 2)], HERE)
    said = io.StringIO()
    runs, notes = train_all(sweep, train, Reporter(aside=Console(file=said, width=200)))
    assert not notes
    assert [line.partition(":")[0] for line in said.getvalue().splitlines()] == ["c1-n1", "c1-n2"]
    assert said.getvalue().rstrip().endswith("2 of 2 runs")
    written = [run.metrics_file.stat().st_mtime_ns for run in runs]
    found = points([str(run.path) for run in runs])
    assert [size for size, _, _ in found] == [parameter_count(model_config(1, 16 * n)) for n in (1, 2)]
    assert all(tokens == 3 * BATCH * CONTEXT for _, tokens, _ in found)
    again, _ = train_all(sweep, train)
    assert [run.metrics_file.stat().st_mtime_ns for run in again] == written
    with pytest.raises(ConfigError, match="other options"):
        train_all(Sweep(paths=("text.txt",), minutes=3), train)


def test_runs_that_would_end_too_late_are_shortened_or_left_out(here: Path) -> None:
    slow = TimeModel(per_run=0, per_layer=10.0, per_flop=0)
    sweep = planned(here, [SweepRun("long", 10, 16, 10**4), SweepRun("short", 1, 16, 10**3)], slow)
    runs, notes = train_all(sweep, train)
    assert [run.path.name for run in runs] == ["short"]
    assert "1 of 2 runs were trained, left out are long; the same command goes on" in notes[0]
    steps = {run["name"]: run["steps"] for run in json.loads((sweep.folder / "sweep.json").read_text())["runs"]}
    assert steps["long"] == 10**4
    assert FEWEST_STEPS < steps["short"] < 60 * sweep.minutes / slow.per_layer


def test_a_folder_that_holds_something_else_is_left_alone(here: Path) -> None:
    mine = here / "runs" / "sweep" / "c1-n1" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(ConfigError, match="something else than a sweep"):
        train_all(Sweep(), train)
    assert mine.read_text() == "mine"
