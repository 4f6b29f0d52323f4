"""Runs as points of a scaling law: parameters, tokens, loss; from run folders, CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limpid.errors import ConfigError
from limpid.files import user_path
from limpid.run import Run
from limpid.source import find_run, find_source, known_runs

COLUMNS = {
    "parameters": ("parameters", "params", "n", "model size", "model_size", "num_params", "n_params"),
    "tokens": ("tokens", "d", "training tokens", "training_tokens", "num_tokens", "n_tokens"),
    "compute": ("compute", "flops", "c", "training flop", "training_flop", "flop"),
    "loss": ("loss", "l", "eval_loss", "final_loss", "val_loss", "validation_loss"),
}
"""Names that columns go by, in any case."""
Point = tuple[float, float, float]


def metrics(run: Run) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that are whole."""
    try:
        lines = run.metrics_file.read_bytes().splitlines()
    except OSError:
        return []
    entries = []
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):  # the last line of a run that was killed
            continue
        entries += [entry] if isinstance(entry, dict) else []
    return entries


@dataclass(frozen=True)
class Progress:
    """How far a run has come, and how fast, as its metrics say."""

    tokens: float
    tokens_per_second: float
    """Median over the steps since it was last started."""
    peak_share: float | None
    """Share of the peak, which is measured at every start, at that speed; None for runs that do not record it."""


def progress_of(run: Run) -> Progress | None:
    """Tokens, speed and share of the peak of a run; None before its first step."""
    steps = [entry for entry in metrics(run) if "tokens_per_second" in entry]
    if not steps:
        return None
    ratios = [entry.get("peak_share", 0.0) / entry["tokens_per_second"] for entry in steps]
    together = [entry for entry, ratio in zip(steps, ratios, strict=True) if math.isclose(ratio, ratios[-1])]
    speed = statistics.median(entry["tokens_per_second"] for entry in together)
    return Progress(float(steps[-1]["num_tokens"]), speed, speed * ratios[-1] or None)


def points(sources: Sequence[str], notes: list[str] | None = None) -> list[Point]:
    """Parameters, tokens and loss of every run named: folders, names under runs/, and tables.

    Runs of a folder that have no evaluation yet are left out, and repeated ones, and said so in `notes`.
    Raises  ConfigError naming what has no loss, or which column is missing
    """
    runs: list[Point] = []
    for source in sources:
        path = user_path(source)
        if path.suffix.lower() in (".csv", ".tsv") and path.is_file():
            delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
            runs += _table(list(csv.DictReader(_text(path).splitlines(), delimiter=delimiter)), path)
        elif path.suffix.lower() in (".jsonl", ".json") and path.is_file():
            runs += _table(_json_rows(path), path)
        elif path.is_dir() and find_source(path) is None:
            runs += _of_folder(path, notes)
        else:
            runs.append(_of_run(find_run(source)))
    once = list(dict.fromkeys(runs))
    if len(once) < len(runs) and notes is not None:
        notes.append(f"{len(runs) - len(once)} runs are given twice, and count once")
    return once


def _of_folder(path: Path, notes: list[str] | None) -> list[Point]:
    runs = known_runs(path)
    if not runs:
        raise ConfigError(f"{path} holds no run: give runs, or a CSV or JSONL with parameters, tokens, loss")
    ready = [run for run in runs if any("eval_loss" in entry for entry in metrics(run))]
    if len(ready) < len(runs) and notes is not None:
        waiting = ", ".join(run.path.name for run in runs if run not in ready)
        notes.append(f"left out, having no evaluation yet: {waiting}")
    return [_of_run(run) for run in ready or runs]


def _of_run(run: Run) -> Point:
    from limpid.plan.parameters import parameter_count

    losses = [entry for entry in metrics(run) if "eval_loss" in entry]
    if not losses:
        raise ConfigError(f"{run.path} has no evaluation yet: let it train to an evaluation (--eval-steps)")
    last = losses[-1]
    tokens = next((entry["num_tokens"] for entry in reversed(metrics(run))
                   if "num_tokens" in entry and entry["step"] <= last["step"]), None)  # fmt: skip
    if tokens is None:
        raise ConfigError(f"{run.path}/metrics.jsonl has no step before its evaluation: it cannot be placed")
    return float(parameter_count(run.read_config().model)), float(tokens), float(last["eval_loss"])


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a table: {error}") from error


def _json_rows(path: Path) -> list[dict[str, Any]]:
    text = _text(path)
    try:
        if path.suffix.lower() == ".json":
            whole = json.loads(text)
            return whole if isinstance(whole, list) else [whole]
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {' '.join(str(error).split())}") from error


def _table(rows: list[dict[str, Any]], path: Path) -> Iterator[Point]:
    """Rows of a table; tokens may be left out where compute is given, being C / 6N."""
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{path} holds no rows with named columns: parameters, tokens (or compute), loss")
    named = {str(key).strip().lower(): key for row in rows for key in row if key is not None}
    columns = {
        column: next((named[name] for name in names if name in named), None) for column, names in COLUMNS.items()
    }
    size_column, loss_column = columns["parameters"], columns["loss"]
    for needed in ("parameters", "loss"):
        if columns[needed] is None:
            raise ConfigError(
                f"{path} has no column for {needed} ({', '.join(COLUMNS[needed])}): it has {', '.join(named)}"
            )
    if columns["tokens"] is None and columns["compute"] is None:
        raise ConfigError(
            f"{path} has neither tokens nor compute among its columns {', '.join(named)}: give one of them"
        )
    for number, row in enumerate(rows, 1):
        try:
            size, loss = float(row[size_column or ""]), float(row[loss_column or ""])
            if columns["tokens"] is not None:
                yield size, float(row[columns["tokens"]]), loss
            else:
                yield size, float(row[columns["compute"] or ""]) / (6 * size), loss
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}, row {number}: {dict(row)} lacks a number for one of its columns") from error
