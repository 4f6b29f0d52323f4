"""Other people's records, and ours, as curves: run folders, TensorBoard, W&B exports, Trainer, nanoGPT, CSV, JSONL.

Readers need no torch. A record is a table of numbers by step; names of the field's tools are translated to ours.
"""

from __future__ import annotations

from pathlib import Path

from limpid.doctor.records.files import console_log, json_lines, separated_values, tensorboard_events, trainer_state
from limpid.doctor.records.table import Curves
from limpid.errors import CheckpointError, ConfigError
from limpid.run import read_config


def read_record(path: Path) -> Curves:
    """The curves of whatever this file or folder is.

    Raises  CheckpointError naming what can be read
    """
    if not path.exists():
        raise CheckpointError(f"{path} does not exist: give a run, a folder of logs, or a log file")
    found = _folder(path) if path.is_dir() else _file(path)
    if not any(found.series.get(name) for name in ("loss", "eval_loss", "grad_norm")):
        raise CheckpointError(
            f"no loss in {path} (read as {found.kind}): expected a column or key such as loss, train/loss or "
            "train_loss beside a step; other names can be renamed in a CSV"
        )
    return found


def _folder(path: Path) -> Curves:
    """The most telling record in a folder."""
    if (path / "metrics.jsonl").is_file():
        return _ours(path)
    states = sorted(path.glob("trainer_state.json")) or sorted(
        path.glob("checkpoint-*/trainer_state.json"), key=lambda file: _digits(file.parent.name)
    )
    if states:
        return _file(states[-1])
    for pattern in (
        "wandb-history.jsonl",
        "*.jsonl",
        "**/metrics.csv",
        "*.csv",
        "files/output.log",
        "*.log",
        "log.txt",
        "*.txt",
    ):
        files = sorted(path.glob(pattern))
        if files:
            return _file(files[-1])
    if any(path.glob("**/*tfevents*")):
        return tensorboard_events(path)
    raise CheckpointError(
        f"{path} holds no record that can be read: looked for metrics.jsonl, trainer_state.json, *.jsonl, *.csv, "
        "*.log, *.txt and TensorBoard events"
    )


def _file(path: Path) -> Curves:
    if "tfevents" in path.name:
        return tensorboard_events(path)
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    ending = path.suffix.lower()
    if ending == ".json":
        return trainer_state(path, text)
    if ending in (".jsonl", ".ndjson") or text.lstrip().startswith('{"'):
        return json_lines(path, text)
    if ending in (".csv", ".tsv"):
        return separated_values(path, text)
    return console_log(path, text)


def _ours(path: Path) -> Curves:
    """A run folder of limpid: its metrics, its vocabulary, its plan."""
    found = json_lines(path / "metrics.jsonl", (path / "metrics.jsonl").read_text(encoding="utf-8"))
    found.kind, found.source = "limpid run", str(path)
    if (path / "config.toml").is_file():
        try:
            config = read_config(path / "config.toml")
        except ConfigError as error:  # another tool's, or cut short
            found.notes.append(f"config.toml was left out: {error}")
        else:
            found.vocab = config.model.vocab_size or None
            found.max_steps = config.run.max_steps
            found.max_grad_norm = config.update.max_grad_norm
    return found


def _digits(name: str) -> int:
    return int("".join(c for c in name if c.isdigit()) or 0)
