"""Other people's records, and ours, as curves: run folders, TensorBoard, W&B exports, Trainer, nanoGPT, CSV, JSONL.

Readers need no torch. A record is a table of numbers by step; names of the field's tools are translated to ours.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from limpid.errors import CheckpointError

NAMES = {
    "loss": (
        "loss",
        "train/loss",
        "train_loss",
        "training_loss",
        "train loss",
        "losses/train",
        "lm loss",
        "train/lm_loss",
        "loss_metrics/global_avg_loss",
        "train_loss_step",
        "train/loss_step",
        "objective/loss",
        "loss/train",
    ),
    "eval_loss": (
        "eval_loss",
        "eval/loss",
        "val/loss",
        "val_loss",
        "val loss",
        "validation_loss",
        "valid_loss",
        "valid/loss",
        "validation loss",
        "test_loss",
        "loss/val",
        "lm loss validation",
    ),
    "grad_norm": (
        "grad_norm",
        "train/grad_norm",
        "grad_norm_before_clip",
        "gradient_norm",
        "norm",
        "grad norm",
        "gnorm",
        "train/gradient_norm",
        "grad_norm/total",
        "grad-norm",
    ),
    "learning_rate": (
        "learning_rate",
        "train/learning_rate",
        "lr",
        "train/lr",
        "lr-adamw",
        "optim/lr",
        "train/lrm",
        "learning-rate",
        "learning rate",
        "lr/group_0",
    ),
    "loss_scale": ("loss_scale", "loss-scale", "scale", "train/loss_scale", "loss scale", "scaler"),
    "epoch": ("epoch", "train/epoch"),
    "accuracy": ("mean_token_accuracy", "train/accuracy", "accuracy", "acc", "train/mean_token_accuracy"),
    "seconds": ("seconds", "dt", "train/dt", "time", "step_time"),
}
TRANSLATION = {theirs: ours for ours, all_names in NAMES.items() for theirs in all_names}
STEPS = ("step", "global_step", "iter", "iteration", "_step", "train/global_step", "trainer/global_step", "steps", "it")
NUMBER = r"(-?\d[\d,]*\.?\d*(?:[eE][+-]?\d+)?|-?nan|-?inf)"
FIND = re.compile(rf"([A-Za-z][\w /\-]*?)\s*[:=]?\s+{NUMBER}\b|([A-Za-z][\w/\-]*)\s*[:=]\s*{NUMBER}", re.IGNORECASE)
"""`name value`, `name: value`, `name=value` on a line of a console log."""


@dataclass
class Curves:
    """What a record says, as lists of (step, value)."""

    source: str
    kind: str
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)  # steps as they were written, to see restarts
    vocab: int | None = None
    max_steps: int | None = None
    max_grad_norm: float | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, step: int, entry: Iterable[tuple[str, Any]]) -> None:
        """One line of the record."""
        taken = False
        for name, value in entry:
            ours = TRANSLATION.get(_clean(name))
            number = _number(value)
            if ours is None or number is None:
                continue
            points = self.series.setdefault(ours, [])
            if not (points and points[-1][0] == step and taken and ours == "loss"):
                points.append((step, number))
            taken = taken or ours in ("loss", "learning_rate", "grad_norm")
        if taken and (not self.order or self.order[-1] != step):
            self.order.append(step)

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.series.get(name, [])]

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.series.get("loss", [])]


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
            "train_loss beside "
            "a step; other names can be renamed in a CSV"
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
        return _tensorboard(path)
    raise CheckpointError(
        f"{path} holds no record that can be read: looked for metrics.jsonl, trainer_state.json, *.jsonl, "
        "*.csv, *.log, "
        "*.txt and TensorBoard events"
    )


def _file(path: Path) -> Curves:
    if "tfevents" in path.name:
        return _tensorboard(path)
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    ending = path.suffix.lower()
    if ending == ".json":
        return _trainer(path, text)
    if ending in (".jsonl", ".ndjson") or text.lstrip().startswith('{"'):
        return _lines(path, text)
    if ending in (".csv", ".tsv"):
        return _table(path, text)
    return _console(path, text)


def _ours(path: Path) -> Curves:
    """A run folder of limpid: its metrics, its vocabulary, its plan."""
    found = _lines(path / "metrics.jsonl", (path / "metrics.jsonl").read_text(encoding="utf-8"))
    found.kind, found.source = "limpid run", str(path)
    if (path / "config.toml").is_file():
        import tomllib

        config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
        found.vocab = config.get("model", {}).get("vocab_size") or None
        found.max_steps = config.get("run", {}).get("max_steps")
        found.max_grad_norm = config.get("update", {}).get("max_grad_norm")
    return found


def _trainer(path: Path, text: str) -> Curves:
    """trainer_state.json of transformers, or any JSON list of entries."""
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{path} is not JSON: line {error.lineno}, {error.msg}; a .jsonl holds one object per line"
        ) from None
    history = whole.get("log_history") if isinstance(whole, dict) else whole
    found = Curves(str(path), "trainer_state.json" if isinstance(whole, dict) else "JSON list")
    if isinstance(whole, dict) and isinstance(history, list):
        found.max_steps = whole.get("max_steps") if isinstance(whole.get("max_steps"), int) else None
    if isinstance(whole, dict) and history is None and all(isinstance(v, list) for v in whole.values()):
        length = min((len(v) for v in whole.values()), default=0)
        history = [{name: column[i] for name, column in whole.items()} for i in range(length)]
    if not isinstance(history, list):
        raise CheckpointError(f"{path} holds no log_history and is no list of entries")
    config = path.parent / "config.json"
    if config.is_file():
        found.vocab = json.loads(config.read_text(encoding="utf-8")).get("vocab_size")
    _take(found, (entry for entry in history if isinstance(entry, dict)))
    return found


def _lines(path: Path, text: str) -> Curves:
    """One JSON object per line; a line cut short at the end is left out."""
    entries, broken = [], 0
    for line in text.splitlines():
        if line.strip():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                broken += 1
                continue
            if isinstance(entry, dict):
                entries.append(_flat(entry))
    found = Curves(str(path), "JSON lines")
    if broken:
        found.notes.append(f"{broken} lines of {path.name} are no JSON and were left out")
    _take(found, entries)
    return found


def _table(path: Path, text: str) -> Curves:
    """CSV with a header; W&B writes `run - loss` and `run - loss__MIN` columns."""
    head = text.splitlines()[0] if text.strip() else ""
    delimiter = max(",;\t", key=head.count)
    found = Curves(str(path), "CSV")
    rows = csv.DictReader(text.splitlines(), delimiter=delimiter)
    names = {
        name: _unprefixed(name) for name in rows.fieldnames or [] if name and not name.endswith(("__MIN", "__MAX"))
    }
    if any(" - " in (name or "") for name in rows.fieldnames or []):
        found.kind = "W&B export (CSV)"
    _take(found, ({names[k]: v for k, v in row.items() if k in names} for row in rows))
    return found


def _unprefixed(name: str) -> str:
    """`my-run - train/loss` without the run."""
    return name.rsplit(" - ", 1)[1] if " - " in name else name


def _console(path: Path, text: str) -> Curves:
    """Lines of a console: nanoGPT's `iter 10: loss 3.2, …`, `step 250: train loss …, val loss …`, and their like."""
    found = Curves(str(path), "console log")
    count = 0
    for line in re.split(r"[\r\n]+", text):
        numbers = {(a or c).strip().lower(): b or d for a, b, c, d in FIND.findall(re.sub(r"\x1b\[[\d;]*m", "", line))}
        where = next((numbers[word] for word in numbers if word.split(" ")[-1] in STEPS), None)
        cleaned = {name.split(" | ")[-1].strip(): value for name, value in numbers.items()}
        if "'loss'" in line or '"loss"' in line:  # a printed dict
            cleaned |= {
                k.lower(): v for k, v in re.findall(r"['\"]([\w/]+)['\"]:\s*['\"]?(-?[\d.eE+-]+|nan|inf)", line)
            }
            where = where or cleaned.get("step") or cleaned.get("global_step")
        if not any(_clean(name) in TRANSLATION for name in cleaned):
            continue
        count += 1
        both = "train loss" in cleaned and "val loss" in cleaned
        step = int(float(where.replace(",", ""))) if where is not None else count
        found.add(step, ((name, value) for name, value in cleaned.items() if not (both and name == "loss")))
    return found


def _tensorboard(path: Path) -> Curves:
    """Scalars of TensorBoard event files."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise CheckpointError(
            "TensorBoard events need an extra: pip install 'limpid[tensorboard]', or export the scalars as CSV"
        ) from error
    found = Curves(str(path), "TensorBoard events")
    folders = [path] if path.is_file() else sorted({file.parent for file in path.glob("**/*tfevents*")})
    table: dict[int, dict[str, float]] = {}
    for folder in folders:
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                table.setdefault(event.step, {}).setdefault(tag, event.value)
    _take(found, ({"step": step, **table[step]} for step in sorted(table)))
    return found


def _take(found: Curves, entries: Iterable[dict[str, Any]]) -> None:
    for number, entry in enumerate(entries, 1):
        step = next((_number(entry[name]) for name in entry if _clean(name) in STEPS), None)
        found.add(int(step) if step is not None and math.isfinite(step) else number, _preferred(entry))


def _preferred(entry: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Entries whose names we know, each of our names once: the first spelling in our order wins."""
    by_clean = {_clean(name): value for name, value in entry.items()}
    for names in NAMES.values():
        for name in names:
            if name in by_clean and _number(by_clean[name]) is not None:
                yield name, by_clean[name]
                break


def _flat(entry: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{key}/")
        else:
            flat[f"{before}{key}"] = value
    return flat


def _clean(name: str) -> str:
    return str(name).strip().lower()


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None or value == "":
        return None
    try:
        return float(str(value).replace(",", ""))
    except ValueError:
        return None


def _digits(name: str) -> int:
    return int("".join(c for c in name if c.isdigit()) or 0)
