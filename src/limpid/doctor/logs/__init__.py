"""Other people's records, and ours, as curves: run folders, TensorBoard, W&B exports, Trainer, nanoGPT, CSV, JSONL.

Readers need no torch. A record is a table of numbers by step; names of the field's tools are translated to ours.
"""

from __future__ import annotations

import codecs
from pathlib import Path

from limpid.config.files import read_config
from limpid.doctor.logs.files import console_log, json_lines, separated_values, tensorboard_events, trainer_state
from limpid.doctor.logs.table import Curves
from limpid.doctor.tuning import tuning_of
from limpid.errors import CheckpointError, ConfigError
from limpid.files import read_whole


def read_record(path: Path) -> Curves:
    """The curves of whatever this file or folder is.

    Raises  CheckpointError naming what can be read
    """
    if not path.exists():
        raise CheckpointError(f"{path} does not exist: give a run, a folder of logs, or a log file")
    return _folder(path) if path.is_dir() else _with_loss(_file(path), path)


def _with_loss(curves: Curves, path: Path) -> Curves:
    """The record, if it says anything.

    Raises  CheckpointError naming what is there instead of a loss
    """
    if any(curves.series.get(name) for name in ("loss", "eval_loss", "grad_norm")):
        return curves
    there = ", ".join(list(curves.unknown)[:8])
    raise CheckpointError(
        f"no loss in {path} (read as {curves.kind}): expected a name such as loss or train/loss beside a step"
        + (f", found {there}; rename the column that is the loss" if there else "")
    )


PLACES = (
    "wandb-history.jsonl",
    "*.jsonl",
    "**/metrics.csv",
    "*.csv",
    "**/files/output.log",
    "*.log",
    "*.txt",
    "*.out",
    "*/*.jsonl",
    "*/*.csv",
)
"""Where a folder may keep its record, the most telling first."""


def _folder(path: Path) -> Curves:
    """The most telling record in a folder; what holds no loss is passed over."""
    if (path / "metrics.jsonl").is_file():
        return _with_loss(_ours(path), path)
    states = sorted(path.glob("trainer_state.json")) or sorted(
        path.glob("checkpoint-*/trainer_state.json"), key=lambda file: _digits(file.parent.name)
    )
    if states:
        return _with_loss(_file(states[-1]), states[-1])
    refused = ""
    for place in PLACES:
        for file in sorted(path.glob(place), reverse=True):
            try:
                return _with_loss(_file(file), file)
            except CheckpointError as error:
                refused = refused or str(error)
    if any(path.glob("**/*tfevents*")):
        return _with_loss(tensorboard_events(path), path)
    raise CheckpointError(
        refused
        or f"{path} holds no record that can be read: looked for metrics.jsonl, trainer_state.json, *.jsonl, *.csv, "
        "*.log, *.txt and TensorBoard events"
    )


def _file(path: Path) -> Curves:
    if "tfevents" in path.name:
        return tensorboard_events(path)
    text = _text(path)
    ending = path.suffix.lower()
    if ending == ".json":
        return trainer_state(path, text)
    if ending in (".jsonl", ".ndjson") or text.lstrip().startswith('{"'):
        return json_lines(path, text)
    if ending in (".csv", ".tsv"):
        return separated_values(path, text)
    return console_log(path, text)


def _text(path: Path) -> str:
    """What a file says, in UTF-8 or, marked as such, UTF-16."""
    try:
        content = read_whole(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = content.decode("utf-16" if wide else "utf-8-sig", errors="replace")
    if not text.strip():
        raise CheckpointError(f"{path} is empty: nothing was logged, or nothing yet")
    return text


def _ours(path: Path) -> Curves:
    """A run folder of limpid: its metrics, its vocabulary, its plan."""
    curves = json_lines(path / "metrics.jsonl", _text(path / "metrics.jsonl"))
    curves.kind, curves.source = "limpid run", str(path)
    if (path / "config.toml").is_file():
        try:
            config = read_config(path / "config.toml")
        except ConfigError as error:  # another tool's, or cut short
            curves.notes.append(f"config.toml was left out: {error}")
        else:
            curves.vocab = config.model.vocab_size or None
            curves.max_steps = config.run.max_steps
            curves.max_grad_norm = config.update.max_grad_norm
            curves.tuning = tuning_of(config)
    return curves


def _digits(name: str) -> int:
    return int("".join(c for c in name if c.isdigit()) or 0)
