"""The kinds of things that a user can name: a run, a checkpoint, a model folder, an adapted model, a recorded step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from limpid.config import ModelConfig
from limpid.files import is_number
from limpid.run import Run

RECORDING = ".safetensors"
"""Ending of a recorded step's file."""
KEPT = "recording.json"
"""File that makes a folder a recording of a step's calls."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a step; `averaged` stands for the moving average of its weights."""

    run: Run
    step: int
    averaged: bool = False

    def __str__(self) -> str:
        return f"{self.run.path}@{self.step}{'@ema' if self.averaged else ''}"

    @property
    def name(self) -> str:
        return self.run.path.resolve().name

    @property
    def title(self) -> str:
        """The name as a report shows it."""
        return f"{self.name} after step {self.step:,}{', averaged' if self.averaged else ''}"

    @property
    def path(self) -> Path:
        return self.run.checkpoint(self.step)

    @property
    def tokenizer_file(self) -> Path:
        return self.run.tokenizer_file

    def read_model_config(self) -> ModelConfig:
        """Sizes and mathematics of the model."""
        return self.run.read_config().model


@dataclass(frozen=True)
class ModelFolder:
    """A model as Hugging Face keeps it: config.json, safetensors, tokenizer.json."""

    path: Path
    on_hub: str | None = None
    """The name on the hub, where the folder lies in its cache."""

    def __str__(self) -> str:
        return self.on_hub or str(self.path)

    @property
    def name(self) -> str:
        return self.on_hub or self.path.resolve().name

    @property
    def title(self) -> str:
        """The name as a report shows it."""
        return self.name

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def tokenizer_file(self) -> Path:
        return self.path / "tokenizer.json"


@dataclass(frozen=True)
class Adapted:
    """A model with an adapter added to its weights, a folder as peft writes it."""

    base: Checkpoint | ModelFolder
    path: Path

    def __str__(self) -> str:
        return f"{self.base}+{self.path}"

    @property
    def name(self) -> str:
        return f"{self.base.name}+{self.path.resolve().name}"

    @property
    def title(self) -> str:
        """The name as a report shows it."""
        return f"{self.base.title} with {self.path.resolve().name}"

    @property
    def tokenizer_file(self) -> Path:
        """The adapter's own where it brings one."""
        own = self.path / "tokenizer.json"
        return own if own.is_file() else self.base.tokenizer_file


@dataclass(frozen=True)
class RecordedStep:
    """One step as it was recorded: a file by itself."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def run(self) -> Run | None:
        """The run that took it, where it lies in that run's steps/ under its number."""
        folder = self.path.resolve().parent.parent
        within = is_number(self.path.stem) and self.path.resolve().parent.name == "steps"
        return Run(folder) if within and (folder / "config.toml").is_file() else None


@dataclass(frozen=True)
class KeptRecording:
    """A step of any PyTorch model, every call of it checked and kept: a folder with recording.json."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Source = Run | Checkpoint | ModelFolder | Adapted | RecordedStep | KeptRecording
Model = Checkpoint | ModelFolder | Adapted
"""What has weights."""
KINDS: dict[type[Source], str] = {
    Run: "a run",
    Checkpoint: "a checkpoint of a run",
    ModelFolder: "a Hugging Face folder",
    Adapted: "an adapted model",
    RecordedStep: "a recorded step",
    KeptRecording: "a recording of calls",
}


def is_recorded_step(file: Path) -> bool:
    """Whether the header of a file says that limpid recorded a step in it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as tensors:
            return "limpid" in (tensors.metadata() or {})
    except (OSError, SafetensorError):
        return False
