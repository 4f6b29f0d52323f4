"""The runs that are here, and the error for a name that stands for nothing: it says what there is instead."""

from __future__ import annotations

import difflib
from pathlib import Path

from limpid.errors import CheckpointError
from limpid.run import RUNS, Run
from limpid.source.kinds import RECORDING

SHOWN = 5
"""Names that an error lists at most."""


def last_run() -> Run:
    """The run that was written to most recently."""
    runs = sorted(known_runs(), key=Run.last_written)
    if not runs:
        raise CheckpointError(f"there is no run under {RUNS}/ yet: start one with `limpid train`")
    return runs[-1]


def known_runs(folder: Path = RUNS) -> list[Run]:
    """Every run in a folder, by name."""
    return [Run(file.parent) for file in sorted(folder.glob("*/config.toml"))]


def nothing(path: Path) -> CheckpointError:
    """The error for a path or name that stands for nothing."""
    if path.suffix == RECORDING:
        return CheckpointError(f"cannot open the recorded step {path}: there is no such file{near(path)}")
    if path.is_file():
        return CheckpointError(
            f"{path} is no recorded step, which ends in {RECORDING}: expected a run, a Hugging Face folder or a "
            "recorded step"
        )
    if not path.is_dir():
        return CheckpointError(
            f"{path} is not a run folder (no config.toml in it or in {RUNS / path}), nor a Hugging Face folder or "
            f"recorded step{near(path)}; {runs_here()}"
        )
    if within := known_runs(path):
        names = listed([str(run.path) for run in within[:SHOWN]], len(within))
        return CheckpointError(f"{path} is a folder of runs, expected one of them: {names}")
    if recorded := sorted(path.glob(f"*{RECORDING}")):
        names = listed([str(file) for file in recorded[:SHOWN]], len(recorded))
        return CheckpointError(f"{path} is neither a run nor a Hugging Face folder; it holds {names}: name the file")
    return CheckpointError(
        f"{path} is not a run folder (no config.toml in it), nor a Hugging Face folder (no config.json); {runs_here()}"
    )


def namesake(what: str) -> str:
    """The run under runs/ that bears the name of something else, which comes before it; empty where there is none."""
    there = RUNS / what
    return f"the run of this name is {there}" if (there / "config.toml").is_file() else ""


def runs_here() -> str:
    runs = [run.path.name for run in known_runs()]
    return (
        f"runs here: {listed(runs[:SHOWN], len(runs))}"
        if runs
        else ("there are no runs here yet: start one with `limpid train`")
    )


def near(path: Path) -> str:
    """; did you mean …? when something beside `path`, or a run, has nearly this name."""
    beside = {entry.name: str(entry) for entry in path.parent.iterdir()} if path.parent.is_dir() else {}
    names = beside | {run.path.name: run.path.name for run in known_runs()}
    close = difflib.get_close_matches(path.name, names, 1)
    return f"; did you mean {names[close[0]]}?" if close else ""


def listed(names: list[str] | list[int], count: int) -> str:
    return ", ".join(map(str, names)) + (", …" if count > len(names) else "")
