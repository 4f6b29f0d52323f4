"""Runs as a list and one by one: what is shown of each is read once, and again when its files have changed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from limpid.config.files import require_as_written
from limpid.config.options import to_dict
from limpid.doctor.finding import Finding, finding_from
from limpid.errors import LimpidError
from limpid.files import MALFORMED
from limpid.history.curves import Axis
from limpid.history.labels import FILE as LABELS
from limpid.history.labels import Labels
from limpid.history.summary import State, state_of
from limpid.metrics import Sample, line_of, number_of
from limpid.planning import parameter_count
from limpid.run import Run
from limpid.view.answers import Refused
from limpid.view.documents.runs import MetricsDocument, Points, RunList, RunOverview, RunRow
from limpid.view.folder import Folder
from limpid.view.series import MEAN, POINTS, Series, last_lines, sampled_lines

TAIL = 1 << 16
"""Bytes at the end of metrics.jsonl that the list looks at: some hundred steps."""
SPARK = 60
"""Points of the curve beside a run in the list."""
SAMPLES, SAMPLES_TAIL = 200, 1 << 20
"""Samples of a run that are shown, the newest, and the bytes that they are looked for in."""
STATE_SECONDS = 2.0
"""How long it is believed that a process writes a run, or does not."""
MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 32, 60, 2000
"""Of what is said of a run in the page."""
KEPT = 32
"""Runs whose columns are held in memory."""
Stamp = tuple[tuple[int, int], ...]


@dataclass
class Runs:
    """The runs of a folder, with what is known of them."""

    folder: Folder
    _rows: dict[str, tuple[Stamp, float, RunRow]] = field(default_factory=dict)
    _series: dict[str, Series] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def list(self) -> RunList:
        """Every run, the one that was written to last first."""
        rows = [self.row(name) for name in self.folder.names()]
        return RunList(str(self.folder.path), tuple(sorted(rows, key=lambda row: -row.last_written)),
                       tuple(self.folder.recordings()))  # fmt: skip

    def row(self, name: str, for_seconds: float = STATE_SECONDS) -> RunRow:
        """How a run stands; whether a process writes it was found out no longer ago than that."""
        try:
            run = self.folder.run(name)
        except LimpidError as error:
            return _unreadable(name, str(error))
        stamp = stamp_of(run.config_file, run.metrics_file, run.path / "findings.jsonl", run.path / LABELS)
        then, at, row = self._rows.get(name, ((), 0.0, None))
        if row is None or then != stamp:
            row = _row(run)
        elif time.monotonic() - at < for_seconds:
            return row
        else:
            row = replace(row, state=_state(run, row))
        self._rows[name] = (stamp, time.monotonic(), row)
        return row

    def label(self, name: str, tags: Sequence[str], note: str) -> RunRow:
        """Give a run these tags and this note, in place of those that it had.

        Raises  Refused for what is none; CheckpointError where the run cannot be written to
        """
        tags = tuple(dict.fromkeys(tag.strip() for tag in tags))
        if len(tags) > MOST_TAGS or not all(0 < len(tag) <= LONGEST_TAG for tag in tags) or len(note) > LONGEST_NOTE:
            raise Refused(
                f"a run has at most {MOST_TAGS} tags of 1 to {LONGEST_TAG} letters, and a note of {LONGEST_NOTE:,}"
            )
        Labels(tags, note).write(self.folder.run(name))
        return self.row(name)

    def series(self, name: str) -> Series:
        """The columns of a run's metrics, as far as they are written."""
        file = self.folder.run(name).metrics_file
        with self._lock:
            series = self._series.pop(name, None) or Series(file)
            self._series[name] = series  # the newest stand last
            for old in list(self._series)[:-KEPT]:
                del self._series[old]
        series.read_on()
        return series

    def overview(self, name: str) -> RunOverview:
        """One run, with all that is left of it."""
        run, row, series = self.folder.run(name), self.row(name), self.series(name)
        try:
            config = run.read_config()
        except LimpidError as error:
            config, row = None, replace(row, state="unreadable", why=str(error))
        saved, recorded = run.checkpoint_steps(), run.recorded_steps()
        judged = series.columns.get("eval_loss")
        losses = {} if judged is None else dict(zip(judged.steps, judged.values, strict=True))
        whole = [step for step in saved if losses.get(step, float("nan")) == losses.get(step)]
        reachable = [] if config is None or not saved else [saved[0] + 1, min(saved[-1] + 1, config.run.max_steps)]
        return RunOverview(
            row=row,
            parameters=None if config is None else parameter_count(config.model),
            best_eval_loss=min(losses.values(), default=None),
            config={} if config is None else to_dict(config),
            columns=(*series.columns, *([MEAN] if "loss" in series.columns else [])),
            recorded=tuple(recorded),
            opened_first=reachable[0] if reachable else None,
            opened_last=max(reachable[1], saved[-1]) if reachable else None,
            checkpoints=tuple(saved),
            best_checkpoint=min(whole, key=lambda step: losses[step], default=None),
            findings=findings_of(run),
            samples=samples_in(last_lines(run.samples_file, SAMPLES_TAIL))[-SAMPLES:],
            after=ends(run, series.offset),
        )

    def metrics(
        self, name: str, columns: Sequence[str], along: Axis, points: int = POINTS, first: int = 0,
        last: int | None = None,
    ) -> MetricsDocument:  # fmt: skip
        """Columns of a run's metrics; those that it does not have are left out."""
        series = self.series(name)
        found = {one: series.column(one, along, points, first, last) for one in columns}
        kept = {one: column for one, column in found.items() if column is not None}
        return MetricsDocument(name, along, kept, ends(self.folder.run(name), series.offset))


def stamp_of(*files: Path) -> Stamp:
    """Size and time of files, 0 where there is none: what is read again when it changes."""
    states = []
    for file in files:
        try:
            state = file.stat()
            states.append((state.st_size, state.st_mtime_ns))
        except OSError:
            states.append((0, 0))
    return tuple(states)


def ends(run: Run, metrics: int) -> str:
    """Where events go on: after so many bytes of metrics, and what is there of findings and samples."""
    sizes = (size for size, _ in stamp_of(run.path / "findings.jsonl", run.samples_file))
    return "-".join(map(str, (metrics, *sizes)))


def findings_of(run: Run) -> tuple[Finding, ...]:
    """What the doctor found in a run, the newest last; of a long file its end."""
    return findings_in(last_lines(run.path / "findings.jsonl", SAMPLES_TAIL))


def findings_in(lines: Sequence[bytes]) -> tuple[Finding, ...]:
    """What the doctor wrote; lines that are no finding are passed over."""
    found = []
    for line in lines:
        try:
            found.append(finding_from(json.loads(line)))
        except MALFORMED:
            continue
    return tuple(found)


def samples_in(lines: Sequence[bytes]) -> tuple[Sample, ...]:
    """What the model made of its prompts; lines that are no sample are passed over."""
    read = (line for line in map(line_of, lines) if line is not None)
    whole = (line for line in read if isinstance(line.get("prompt"), str) and isinstance(line.get("text"), str))
    return tuple(Sample(line["step"], line["prompt"], line["text"]) for line in whole)


def _last(texts: Sequence[bytes], name: bytes) -> dict[str, Any]:
    """The last whole line that has a column; nothing of the others is parsed."""
    lines = (line_of(text) for text in reversed(texts) if b'"%s"' % name in text)
    return next((line for line in lines if line is not None), {})


def _row(run: Run) -> RunRow:
    texts = last_lines(run.metrics_file, TAIL)
    last, judged = _last(texts, b"loss"), _last(texts, b"eval_loss")
    try:
        is_whole = require_as_written(run.config_file)
        said = last.get("max_steps") if is_whole else None  # reading the whole file takes longer than all the rest
        max_steps = said if type(said) is int else run.read_config().run.max_steps
    except LimpidError as error:
        return _unreadable(run.path.name, str(error))
    points = [line for line in map(line_of, sampled_lines(run.metrics_file, SPARK)) if line and "loss" in line]
    labels = Labels.of(run)
    found = findings_of(run)
    return RunRow(
        name=run.path.name,
        state=state_of(run, last, max_steps),
        why="",
        step=last.get("step", 0),
        max_steps=max_steps,
        loss=number_of(last.get("loss")),
        eval_loss=number_of(judged.get("eval_loss")),
        num_tokens=last.get("num_tokens"),
        tokens_per_second=number_of(last.get("tokens_per_second")),
        last_written=run.last_written(),
        tags=labels.tags,
        note=labels.note,
        findings=sum(one.severity != "notice" for one in found),
        curve=Points(*_columns((float(line["step"]), float(line["loss"])) for line in points)),
    )


def _columns(pairs: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    both = list(pairs)
    return tuple(x for x, _ in both), tuple(y for _, y in both)


def _state(run: Run, row: RunRow) -> State:
    """The state of a run whose files are as they were: only whether a process writes it can have changed."""
    if row.state in ("unreadable", "diverged"):
        return row.state
    return state_of(run, {} if not row.step else {"step": row.step}, row.max_steps)


def _unreadable(name: str, why: str) -> RunRow:
    return RunRow(name, "unreadable", why, 0, 0, None, None, None, None, 0.0, (), "", 0, Points((), ()))
