"""A sweep: runs of a scaling law planned within a time budget, trained, taken up again."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpid.errors import ConfigError
from limpid.plan.parameters import parameter_count
from limpid.plan.runs import points
from limpid.sweep import BATCH, CONTEXT, Planned, largest_that_fits, model_of, runs_of, seconds_of, sweep
from limpid.verbs import PlanSweepFlags

PER_STEP = (1e-3, 1e-11)


def test_runs_of_one_budget_share_its_compute() -> None:
    for run in runs_of(1e13, 3, 4):
        budget = 1e13 * 4 ** (int(run.name[1]) - 1)
        spent = 6 * parameter_count(model_of(run.num_layers, run.d_model)) * run.steps * BATCH * CONTEXT
        assert spent == pytest.approx(budget, rel=0.05)


def test_the_sweep_fills_its_time_and_no_more() -> None:
    for minutes in (5, 60):
        runs = largest_that_fits(60 * minutes, 3, 4, PER_STEP)
        assert 0.5 * 60 * minutes < seconds_of(runs, PER_STEP) <= 60 * minutes


def test_too_little_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="give --minutes"):
        largest_that_fits(0.01, 3, 4, PER_STEP)


def test_a_sweep_trains_its_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("".join(f"{n} and {n * n} make {n + n * n}.\n" for n in range(4000)))
    monkeypatch.setattr(
        "limpid.sweep.largest_that_fits", lambda *_: [Planned(f"c1-n{n}", 1, 16 * n, 3) for n in (1, 2)]
    )
    flags = PlanSweepFlags(paths=("text.txt",))
    runs, notes = sweep(flags)
    assert not notes
    written = [run.metrics_file.stat().st_mtime_ns for run in runs]
    found = points([str(run.path) for run in runs])
    assert [size for size, _, _ in found] == [parameter_count(model_of(1, 16 * n)) for n in (1, 2)]
    assert all(tokens == 3 * BATCH * CONTEXT for _, tokens, _ in found)
    again, _ = sweep(flags)
    assert [run.metrics_file.stat().st_mtime_ns for run in again] == written
    with pytest.raises(ConfigError, match="other options"):
        sweep(PlanSweepFlags(paths=("text.txt",), minutes=3))
