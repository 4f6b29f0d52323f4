"""Runs as points of a scaling law: parameters, tokens, loss; from run folders, CSV or JSON lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from limpid.errors import ConfigError
from limpid.files import MALFORMED, parse_json, user_path
from limpid.run import Run
from limpid.source import find_run, find_source, known_runs

COLUMNS = {
    "parameters": ("parameters", "params", "n", "model size", "model_size", "num_params", "n_params"),
    "tokens": ("tokens", "d", "training tokens", "training_tokens", "num_tokens", "n_tokens"),
    "compute": ("compute", "flops", "c", "training flop", "training_flop", "flop"),
    "loss": ("loss", "l", "eval_loss", "final_loss", "val_loss", "validation_loss"),
}
"""Names that columns go by, in any case."""
TABLES = (".csv", ".tsv", ".jsonl", ".json")
"""Endings of the files that are read."""
Point = tuple[float, float, float]


def points(sources: Sequence[str], notes: list[str] | None = None) -> list[Point]:
    """Parameters, tokens and loss of every run named: folders, names under runs/, and tables.

    Runs of a folder that have no evaluation yet are left out, and repeated ones, and said so in `notes`.
    Raises  ConfigError naming what is no table, what has no loss, or which column is missing
    """
    runs: list[Point] = []
    for source in sources:
        path = user_path(source)
        is_table = path.suffix.lower() in TABLES
        if path.is_file() and is_table:
            runs += _table(_rows(path), path)
        elif path.is_dir() and find_source(path) is None:
            runs += _of_folder(path, notes)
        elif path.is_file() and find_source(path) is None:
            raise ConfigError(
                f"{path} is no table that is read here: expected {', '.join(TABLES[:-1])} or {TABLES[-1]} with a "
                "row for each run (parameters, tokens or compute, loss), or runs and folders of them"
            )
        elif is_table and not path.exists():
            raise ConfigError(f"{path} would be a table, but it is not there: give tables, runs, or folders of runs")
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
    ready = [run for run in runs if run.read_metrics().evaluations]
    if len(ready) < len(runs) and notes is not None:
        waiting = ", ".join(run.path.name for run in runs if run not in ready)
        notes.append(f"left out, having no evaluation yet: {waiting}")
    return [_of_run(run) for run in ready or runs]


def _of_run(run: Run) -> Point:
    from limpid.planning.parameters import parameter_count

    metrics = run.read_metrics()
    if not metrics.evaluations:
        raise ConfigError(f"{run.path} has no evaluation yet: let it train to an evaluation (--eval-steps)")
    last = metrics.evaluations[-1]
    before = (line for line in reversed(metrics.steps) if "num_tokens" in line and line["step"] <= last["step"])
    tokens = next((line["num_tokens"] for line in before), None)
    if tokens is None:
        raise ConfigError(f"{run.path}/metrics.jsonl has no step before its evaluation: it cannot be placed")
    return float(parameter_count(run.read_config().model)), float(tokens), float(last["eval_loss"])


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a table: {error}") from error


def _rows(path: Path) -> list[dict[str, Any]]:
    text, ending = _text(path), path.suffix.lower()
    if ending in (".csv", ".tsv"):
        return list(csv.DictReader(text.splitlines(), delimiter="\t" if ending == ".tsv" else ","))
    try:
        if ending == ".json":
            whole = parse_json(text)
            return whole if isinstance(whole, list) else [whole]
        return [parse_json(line) for line in text.splitlines() if line.strip()]
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
        except MALFORMED as error:
            raise ConfigError(f"{path}, row {number}: {dict(row)} lacks a number for one of its columns") from error
