"""One reader for each kind of file: JSON, JSON lines, CSV, a console, TensorBoard events."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

from limpid.doctor.records.names import STEPS, TRANSLATION
from limpid.doctor.records.table import Curves, clean, fill
from limpid.errors import CheckpointError


def trainer_state(path: Path, text: str) -> Curves:
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
    fill(found, (entry for entry in history if isinstance(entry, dict)))
    return found


def json_lines(path: Path, text: str) -> Curves:
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
    fill(found, entries)
    return found


def _flat(entry: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{key}/")
        else:
            flat[f"{before}{key}"] = value
    return flat


def separated_values(path: Path, text: str) -> Curves:
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
    fill(found, ({names[k]: v for k, v in row.items() if k in names} for row in rows))
    return found


def _unprefixed(name: str) -> str:
    """`my-run - train/loss` without the run."""
    return name.rsplit(" - ", 1)[1] if " - " in name else name


NUMBER = r"(-?\d[\d,]*\.?\d*(?:[eE][+-]?\d+)?|-?nan|-?inf)"


FIND = re.compile(rf"([A-Za-z][\w /\-]*?)\s*[:=]?\s+{NUMBER}\b|([A-Za-z][\w/\-]*)\s*[:=]\s*{NUMBER}", re.IGNORECASE)
"""`name value`, `name: value`, `name=value` on a line of a console log."""


def console_log(path: Path, text: str) -> Curves:
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
        if not any(clean(name) in TRANSLATION for name in cleaned):
            continue
        count += 1
        both = "train loss" in cleaned and "val loss" in cleaned
        step = int(float(where.replace(",", ""))) if where is not None else count
        found.add(step, ((name, value) for name, value in cleaned.items() if not (both and name == "loss")))
    return found


def tensorboard_events(path: Path) -> Curves:
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
    fill(found, ({"step": step, **table[step]} for step in sorted(table)))
    return found
