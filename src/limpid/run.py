"""The run folder: where everything lies; made for a new run, and removed only where it is ours."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limpid.config import TrainConfig
from limpid.config.files import read_config, read_options, write_config
from limpid.config.options import from_dict
from limpid.errors import CheckpointError
from limpid.files import explained
from limpid.terminal import command

RUNS = Path("runs")
CHECKPOINT_VERSION = 1
STARTING = ".limpid-starting"
"""Marks a folder that limpid made for a run whose configuration is not written yet. Without it nothing is removed."""


@dataclass(frozen=True)
class Run:
    """One run's folder.

    config.toml  tokenizer.json  metrics.jsonl  micro_batches.jsonl  findings.jsonl
    checkpoints/000500/   model.safetensors  optimizer.safetensors  state.json
    model/                the final model as Hugging Face expects it
    steps/000500.safetensors   a recorded step
    """

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.toml"

    @property
    def tokenizer_file(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def micro_batches_file(self) -> Path:
        """A line per micro-batch; older runs call it ledger.jsonl."""
        old = self.path / "ledger.jsonl"
        return old if old.is_file() else self.path / "micro_batches.jsonl"

    @property
    def model_folder(self) -> Path:
        return self.path / "model"

    def checkpoint(self, step: int) -> Path:
        """Folder of the state after `step` updates."""
        return self.path / "checkpoints" / f"{step:06d}"

    def recorded_step(self, step: int) -> Path:
        """File of recorded step `step` (1 is the first update)."""
        return self.path / "steps" / f"{step:06d}.safetensors"

    def checkpoint_steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending. A folder gets its number only once it is whole."""
        folder = self.path / "checkpoints"
        if not folder.is_dir():
            return []
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit() and entry.is_dir())

    def latest_checkpoint(self) -> int:
        """Step of the newest complete checkpoint."""
        steps = self.checkpoint_steps()
        if not steps:
            raise CheckpointError(f"{self.path} holds no complete checkpoint yet: let it train past its first one")
        return steps[-1]

    def read_state(self, step: int) -> dict[str, Any]:
        """state.json of a checkpoint: where it stands, and what it was trained on."""
        folder = self.checkpoint(step)
        try:
            state: dict[str, Any] = json.loads((folder / "state.json").read_text())
            missing = {"version", "step", "updates", "data", "scaler"} - set(state)
            if missing:
                raise ValueError(f"no {', '.join(sorted(missing))}")
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"{folder} is not a complete checkpoint (state.json is missing or cut short): "
                "use another one under checkpoints/"
            ) from error
        if state["version"] != CHECKPOINT_VERSION:
            raise CheckpointError(
                f"{folder} has format version {state['version']}; this limpid reads {CHECKPOINT_VERSION}"
            )
        return state

    def read_config(self) -> TrainConfig:
        """The configuration that the run trains with, all choices resolved."""
        return read_config(self.config_file)

    def read_asked(self) -> TrainConfig:
        """The configuration that was asked for, with what was left open still open."""
        return from_dict(TrainConfig, read_options(self.config_file))

    def write_config(self, config: TrainConfig, asked: TrainConfig | None = None) -> None:
        """Keep what the run trains with beside what was asked for, which stays as it is unless it is given.

        The folder is a run from here on.
        """
        write_config(self.config_file, asked or self.read_asked(), config)
        (self.path / STARTING).unlink(missing_ok=True)


def new_run(name: str | None) -> Run:
    """An empty folder for a run: the name asked for, or the next free number.

    Nothing that limpid did not make is removed: only a folder that it marked, and that holds nothing of anybody else's.

    Raises  CheckpointError when there is something under this name
    """
    path = _numbered() if name is None else Path(name) if os.sep in name else RUNS / name
    if _never_became_a_run(path):
        shutil.rmtree(path)
    if (path / "config.toml").is_file():
        raise CheckpointError(
            f"{path} is a run already: continue it with `{command('limpid', 'train', '--resume', path)}`, or choose "
            "another --name"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(f"{path} exists and holds something that is no run: choose another --name, or move it")
    with explained(f"cannot create {path}"):
        path.mkdir(parents=True, exist_ok=True)
        (path / STARTING).touch()
    return Run(path)


def _numbered() -> Path:
    """A new folder with the next free number; of two processes that ask at once each gets its own."""
    numbers = [int(entry.name) for entry in RUNS.glob("*") if entry.name.isdigit()]
    number = max(numbers, default=0) + 1
    with explained(f"cannot create a run under {RUNS}"):
        RUNS.mkdir(parents=True, exist_ok=True)
        while True:
            with contextlib.suppress(FileExistsError):
                (RUNS / f"{number:03d}").mkdir()
                return RUNS / f"{number:03d}"
            number += 1


def _never_became_a_run(path: Path) -> bool:
    """Whether this folder bears our mark, and holds nothing but what a run writes before its configuration."""
    if not (path / STARTING).is_file() or (path / "config.toml").exists():
        return False
    first = Run(path).checkpoint(0).name
    written = {STARTING, "tokenizer.json", ".tokenizer.json.writing", "checkpoints", ".config.toml.writing"}
    within = {entry.name for entry in (path / "checkpoints").glob("*")}
    return {entry.name for entry in path.iterdir()} <= written and within <= {first, f".{first}.writing"}


def remove_run(run: Run) -> None:
    """Remove a run, or what a run left before it was one; nothing else.

    Raises  CheckpointError when the folder is neither
    """
    if run.config_file.is_file() or _never_became_a_run(run.path):
        shutil.rmtree(run.path, ignore_errors=True)
    elif run.path.exists():
        raise CheckpointError(f"{run.path} exists and is no run: move it, for a run of this name is to be trained")
