"""One reader for each kind of file: JSON, JSON lines, CSV, a console, TensorBoard events."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

from limpid.doctor.logs.table import STEPS, TRANSLATION, Curves, as_number, fill, spelled, step_of
from limpid.errors import CheckpointError
from limpid.files import one_line, parse_json


def trainer_state(path: Path, text: str) -> Curves:
    """trainer_state.json of transformers, or any JSON list of entries."""
    try:
        whole = parse_json(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated"):
            raise CheckpointError(f"{path} ends in the middle: it is being written, or was cut short") from None
        raise CheckpointError(
            f"{path} is not JSON: line {error.lineno}, {error.msg}; a .jsonl holds one object per line"
        ) from None
    except ValueError as error:  # nested too deeply, or a number of more digits than Python reads
        raise CheckpointError(f"{path} cannot be read ({one_line(error)}): no training logs that") from None
    history = whole.get("log_history") if isinstance(whole, dict) else whole
    curves = Curves(str(path), "trainer_state.json" if isinstance(whole, dict) else "JSON list")
    if isinstance(whole, dict) and isinstance(history, list):
        curves.max_steps = whole.get("max_steps") if isinstance(whole.get("max_steps"), int) else None
    if isinstance(whole, dict) and history is None and all(isinstance(v, list) for v in whole.values()):
        length = min((len(v) for v in whole.values()), default=0)
        history = [{name: column[i] for name, column in whole.items()} for i in range(length)]
    if not isinstance(history, list):
        raise CheckpointError(f"{path} holds no log_history and is no list of entries")
    curves.vocab = _vocab(path.parent / "config.json", curves)
    fill(curves, (entry for entry in history if isinstance(entry, dict)))
    return curves


def _vocab(config: Path, curves: Curves) -> int | None:
    """Size of the vocabulary, from the configuration of a model of transformers."""
    if not config.is_file():
        return None
    try:
        read = parse_json(config.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        curves.notes.append(f"{config.name} beside it is no JSON and was left out")
        return None
    size = {**read.get("text_config", {}), **read}.get("vocab_size") if isinstance(read, dict) else None
    return size if isinstance(size, int) and size > 1 else None


def json_lines(path: Path, text: str) -> Curves:
    """One JSON object per line; a line cut short at the end is left out."""
    entries, broken = [], 0
    for line in text.splitlines():
        if line.strip():
            try:
                entry = parse_json(line)
            except ValueError:
                broken += 1
                continue
            if isinstance(entry, dict):
                entries.append(_flat(entry))
    curves = Curves(str(path), "JSON lines")
    if broken:
        curves.notes.append(f"{path.name}: left out {broken} line{'s' * (broken > 1)} of no valid JSON")
    fill(curves, entries)
    return curves


def _flat(entry: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{key}/")
        else:
            flat[f"{before}{key}"] = value
    return flat


def separated_values(path: Path, text: str) -> Curves:
    """CSV with a header; W&B writes `run - loss` and `run - loss__MIN` columns, several runs side by side."""
    head = text.splitlines()[0] if text.strip() else ""
    delimiter = max(",;\t", key=head.count)
    curves = Curves(str(path), "CSV")
    try:
        rows = list(csv.DictReader(text.splitlines(), delimiter=delimiter))
    except csv.Error as error:
        raise CheckpointError(f"{path} is no table: {error}") from None
    columns = [name for name in (rows[0] if rows else {}) if name and not name.endswith(("__MIN", "__MAX"))]
    filled = {name for row in rows for name in columns if row[name]}
    runs = list(dict.fromkeys(name.rsplit(" - ", 1)[0] for name in columns if " - " in name and name in filled))
    if runs:
        curves.kind = "W&B export (CSV)"
        columns = [name for name in columns if " - " not in name or name.rsplit(" - ", 1)[0] == runs[0]]
        if len(runs) > 1:
            curves.notes.append(f"{len(runs)} runs side by side: {runs[0]} is read; export the others alone")
    if delimiter == ";":  # where a comma separates decimals
        rows = [{name: str(value).replace(",", ".") for name, value in row.items() if name} for row in rows]
    fill(curves, ({name.rsplit(" - ", 1)[-1]: row[name] for name in columns} for row in rows))
    return curves


NUMBER = r"(-?\d[\d,]{0,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,5})?|-?nan|-?inf)"
FIND = re.compile(
    rf"(?<![A-Za-z])(?:([A-Za-z][\w /\-]{{0,100}}?) ?[:=]? {NUMBER}\b|([A-Za-z][\w/\-]{{0,100}}) ?[:=] ?{NUMBER})",
    re.IGNORECASE,
)
"""`name value`, `name: value`, `name=value` on a line of a console log; bounded, else a long line takes its square."""
IN_DICT = re.compile(rf"['\"]([\w/]{{1,100}})['\"]: ?['\"]?{NUMBER}")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
LONGEST_LINE = 10_000
"""Characters that are looked at: a tensor or an image that was printed is longer."""


def console_log(path: Path, text: str) -> Curves:
    """Lines of a console: nanoGPT's `iter 10: loss 3.2, …`, `step 250: train loss …, val loss …`, and their like."""
    curves = Curves(str(path), "console log")
    count = 0
    for whole in re.split(r"[\r\n]+", text):
        line = " ".join(COLOUR.sub("", whole[:LONGEST_LINE]).split())
        numbers = {(a or c).strip().lower(): b or d for a, b, c, d in FIND.findall(line)}
        where = next((numbers[word] for word in numbers if word.split(" ")[-1] in STEPS), None)
        cleaned = {re.split(r" [|-] ", name)[-1].strip(): value for name, value in numbers.items()}
        if "'loss'" in line or '"loss"' in line:  # a printed dict
            cleaned |= {name.lower(): value for name, value in IN_DICT.findall(line)}
            where = where or cleaned.get("step") or cleaned.get("global_step")
        if not any(spelled(name) in TRANSLATION for name in cleaned):
            continue
        count += 1
        both = "train loss" in cleaned and "val loss" in cleaned
        curves.add(
            step_of(as_number(where), count),
            ((name, value) for name, value in cleaned.items() if not (both and name == "loss")),
        )
    return curves


def tensorboard_events(path: Path) -> Curves:
    """Scalars of TensorBoard event files."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise CheckpointError(
            "TensorBoard events need an extra: pip install 'limpid[tensorboard]', or export the scalars as CSV"
        ) from error
    curves = Curves(str(path), "TensorBoard events")
    files = [path] if path.is_file() else sorted(path.glob("**/*tfevents*"))
    for file in files:
        if not file.is_file():  # a pipe, which reading would wait for
            raise CheckpointError(f"{file} is no file: move it, or give another folder")
    folders = [path] if path.is_file() else sorted({file.parent for file in files})
    table: dict[int, dict[str, float]] = {}
    for folder in folders:
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                table.setdefault(event.step, {}).setdefault(tag, event.value)
        for tag in events.Tags()["tensors"]:  # TensorFlow 2 and JAX write scalars as tensors of one number
            for event in events.Tensors(tag):
                value = make_ndarray(event.tensor_proto)
                if value.size == 1 and value.dtype.kind == "f":
                    table.setdefault(event.step, {}).setdefault(tag, float(value.reshape(())))
    fill(curves, ({"step": step, **table[step]} for step in sorted(table)))
    return curves
