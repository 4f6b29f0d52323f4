"""The run folder: where everything lies, and writes that are whole or absent."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from limpid.config import TrainConfig
from limpid.config.options import from_dict, to_dict
from limpid.errors import CheckpointError, ConfigError, LimpidError

RUNS = Path("runs")


@dataclass(frozen=True)
class Run:
    """One run's folder.

    config.toml  tokenizer.json  metrics.jsonl  ledger.jsonl  findings.jsonl
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
    def ledger_file(self) -> Path:
        return self.path / "ledger.jsonl"

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

    def read_config(self) -> TrainConfig:
        """The configuration that the run was started with, all choices resolved."""
        return read_config(self.config_file)


def new_run(name: str | None) -> Run:
    """An empty folder for a run: the name asked for, or the next free number."""
    if name is not None:
        path = Path(name) if os.sep in name else RUNS / name
        if _broke_off_before_it_was_a_run(path):
            shutil.rmtree(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise CheckpointError(
                f"{path} exists already: continue it with `limpid train --resume {path}`, or choose another --name"
            )
    else:
        taken = {int(entry.name) for entry in RUNS.glob("*") if entry.name.isdigit()}
        path = RUNS / f"{max(taken, default=0) + 1:03d}"
    with explained(f"cannot create {path}"):
        path.mkdir(parents=True, exist_ok=True)
    return Run(path)


def _broke_off_before_it_was_a_run(path: Path) -> bool:
    """Whether this folder holds nothing but what a run writes before its configuration, which comes last."""
    written = {"tokenizer.json", ".tokenizer.json.writing", "checkpoints", ".config.toml.writing"}
    return path.is_dir() and {entry.name for entry in path.iterdir()} <= written


def read_config(file: Path) -> TrainConfig:
    """A configuration from TOML, JSON or YAML (by its ending), every key checked."""
    return from_dict(TrainConfig, read_options(file))


def read_options(file: Path) -> dict[str, Any]:
    """The options that a file of TOML, JSON or YAML (by its ending) holds, section by section, every one checked."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    try:
        plain = _parse(text, file.suffix)
    except ValueError as error:  # each parser's error for text that is not its format is a ValueError
        raise ConfigError(f"{file} is not valid {file.suffix.lstrip('.') or 'TOML'}: {_one_line(error)}") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{file} holds {type(plain).__name__}, expected tables of options: [model], [data], …")
    try:
        from_dict(TrainConfig, plain)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    return plain


def _parse(text: str, ending: str) -> Any:
    if ending == ".json":
        return json.loads(text)
    if ending in (".yaml", ".yml"):
        try:
            import yaml
        except ImportError as error:
            raise ConfigError("YAML needs an extra: pip install 'limpid[yaml]', or use TOML or JSON") from error
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
    return tomllib.loads(text)


def write_config(file: Path, config: TrainConfig) -> None:
    """Write a configuration as TOML, whole or not at all."""
    write_atomically(file, tomli_w.dumps(to_dict(config)).encode())


def write_atomically(file: Path, content: bytes) -> None:
    """Replace `file` by `content`: after a crash it is the old one or the new one, never a part."""
    temporary = file.with_name(f".{file.name}.writing")
    with explained(f"cannot write {file}", temporary):
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
        sync_folder(file.parent)


@contextlib.contextmanager
def folder_written_atomically(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill, which becomes `folder` when the block ends without an error."""
    temporary = folder.with_name(f".{folder.name}.writing")
    with explained(f"cannot write {folder}", temporary):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.iterdir():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        sync_folder(temporary)
        if folder.exists():  # a rename cannot replace a full folder
            retired = folder.with_name(f".{folder.name}.retired")
            shutil.rmtree(retired, ignore_errors=True)
            folder.rename(retired)
            temporary.rename(folder)
            shutil.rmtree(retired, ignore_errors=True)
        else:
            temporary.rename(folder)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in this folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explained(what: str, leftover: Path | None = None) -> Iterator[None]:
    """Turn a refusal of the file system into one line, and remove what was half written."""
    try:
        yield
    except BaseException as error:
        if leftover is not None:
            shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or _one_line(error)
        refused = isinstance(error, OSError) or "I/O error" in str(error)  # safetensors' own
        if refused and not isinstance(error, LimpidError):
            raise CheckpointError(f"{what}: {reason}; what was saved before is intact; make room and go on") from error
        raise


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
