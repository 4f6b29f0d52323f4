"""What a run writes about itself: metrics.jsonl, micro_batches.jsonl, and lines or a bar for its user."""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from limpid.config import TrainConfig
from limpid.data.batches import MicroBatch
from limpid.files import MALFORMED, LineFile, explained, write_atomically
from limpid.jsonable import jsonable
from limpid.machine import process_peak
from limpid.metrics import Sample
from limpid.planning import flops_per_token
from limpid.reporter import Reporter
from limpid.run import Run
from limpid.theme import FAULT
from limpid.training.precision import FORMATS, measured_peak
from limpid.training.step import Outcome
from limpid.training.trackers import Trackers

if TYPE_CHECKING:
    from limpid.training.validation import Evaluation

ALIASES = {
    "loss": "train/loss",
    "grad_norm_before_clip": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "eval_loss": "val/loss",
    "eval_bits_per_byte": "val/bpb",
}
"""Names that dashboards of the field look for, beside ours."""


def tracked(entry: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a line by the names that trackers show them under: train/…, or val/… of an evaluation."""
    numbers = {name: value for name, value in entry.items() if type(value) in (int, float) and name not in UNTRACKED}
    return {ALIASES.get(name) or _tracked(name): value for name, value in numbers.items()}


def mean_of(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What was measured of each micro-batch, over all of them."""
    names = dict.fromkeys(name for one in measured for name in one)
    return {name: statistics.fmean(one[name] for one in measured if name in one) for name in names}


def _tracked(name: str) -> str:
    return f"val/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"


UNTRACKED = {"step", "max_steps"}
"""The axis, and what the configuration says."""


FEW = 10
"""Steps of a process among which the first, which compiles, and those that the doctor examines count too much."""


class RecentSteps:
    """Seconds that the last 20 steps of this process took."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=20)

    def mean_with(self, seconds: float) -> float:
        """Their mean after one more; without those of ten medians, which were stopped, or compiled what all use."""
        self.seconds.append(seconds)
        limit = 10 * statistics.median(self.seconds)
        return statistics.fmean(one for one in self.seconds if one <= limit)

    def ahead(self, mean: float) -> float | None:
        """What a step to come takes: their mean; of few the shortest, and of the first nothing, which does more."""
        if len(self.seconds) == 1:
            return None
        return min(self.seconds) if len(self.seconds) < FEW else mean


class MetricsLogger:
    """Appends to the run's records, and shows its user how it goes."""

    def __init__(self, run: Run, config: TrainConfig, reporter: Reporter, first: int, device: torch.device) -> None:
        self.run, self.config, self.reporter = run, config, reporter
        self.metrics, self.micro_batches = LineFile(run.metrics_file), LineFile(run.micro_batches_file)
        self.tokens = run.logged(first - 1, first - 1).get(first - 1, {}).get("num_tokens", 0)
        self.length, self.flops = 0, 0
        self.peak = measured_peak(FORMATS[config.run.precision], device)
        self.recent, self.seconds = RecentSteps(), 0.0
        self.samples_kept = LineFile(run.samples_file) if run.samples_file.is_file() else None
        self.trackers = Trackers(run, config, self.say) if config.run.report_to else None
        self.progress, self.task = self._bar(first)

    def _bar(self, first: int) -> tuple[Progress | None, TaskID]:
        if not self.reporter.is_terminal:
            return None, TaskID(0)
        progress = Progress(
            BarColumn(bar_width=12), TextColumn("{task.description}"), console=self.reporter.console, transient=True
        )
        progress.start()
        return progress, progress.add_task("first step", total=self.config.run.max_steps, completed=first - 1)

    def step(self, outcome: Outcome, batch: Sequence[MicroBatch], seconds: float, epoch: float) -> None:
        """Record one step: a line of metrics, a line per micro-batch, and now and then one on the console."""
        self.run.require_there()
        tokens = sum(micro.size for micro in batch)
        self.tokens += tokens
        if (length := batch[0]["tokens"].shape[-1]) != self.length:  # rows of records have lengths of their own
            self.length, self.flops = length, 3 * flops_per_token(self.config.model, length)
        self.seconds = self.recent.mean_with(seconds)  # what is said follows the recent steps
        rate = tokens / seconds * self.flops
        self.peak = max(self.peak, rate)  # others may have used the processor while it was measured
        norm, clip = outcome.grad_norm, self.config.update.max_grad_norm
        entry = {
            "step": outcome.number,
            "loss": outcome.loss,
            "grad_norm_before_clip": norm,
            "grad_norm_after_clip": norm if clip is None else min(norm, clip) if math.isfinite(norm) else norm,
            "learning_rate": outcome.learning_rate,
            "epoch": epoch,
            "num_tokens": self.tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "peak_share": rate / self.peak,
            "process_peak_bytes": process_peak(),
            "updated": outcome.updated,
            "max_steps": self.config.run.max_steps,  # the rate follows from it, and a resume may change it
        }
        if outcome.loss_scale != 1:
            entry["loss_scale"] = outcome.loss_scale
        entry |= {**outcome.metrics, **mean_of([micro.measured for micro in batch])}
        self.write(entry)
        lines = (
            {
                "step": outcome.number,
                "micro_batch": index,
                "rows": list(micro.rows),
                "tokens": micro.size,
                "labels": outcome.labels[index],
                "loss": outcome.micro_losses[index] * sum(outcome.labels) / max(1, outcome.labels[index]),
            }
            for index, micro in enumerate(batch)
        )
        self.micro_batches.write(*(json.dumps(jsonable(line)) for line in lines))
        self._speak(outcome, tokens)

    def _speak(self, outcome: Outcome, tokens: int) -> None:
        last = self.config.run.max_steps
        step, loss = f"step {outcome.number}/{last}", f"loss {outcome.loss:.4f}"
        speed = f"{self.seconds * 1e3:.0f} ms | {tokens / self.seconds:,.0f} tok/s"
        ahead, to_come = self.recent.ahead(self.seconds), last - outcome.number
        left = [] if ahead is None and to_come else [f"{_clock(to_come * (ahead or 0.0))} left"]
        live = " | ".join([step, *left, loss, speed])  # with its bar not wider than 80 columns
        rates = f"lr {outcome.learning_rate:.2e} | grad norm {outcome.grad_norm:.3f}"
        if self.progress is None:
            share = f"{tokens / self.seconds * self.flops / self.peak:.0%} of measured peak"
            done = f"{step} ({outcome.number / last:.0%})"
            line = " | ".join([done, loss, f"{rates} before clip", speed, share, *left])
        else:  # not wider than 80 columns; the time left is in the live line
            line = f"{step} | {loss} | {rates} | {tokens / self.seconds:,.0f} tok/s"
        if not outcome.finite:
            skipped = "update skipped, loss scale lowered" if outcome.loss_scale != 1 else "no update made"
            line += f"  ← NOT FINITE: {skipped}"
        if self.progress is not None:
            self._show(partial(self.progress.update, self.task, completed=outcome.number, description=live))
        due = outcome.number % self.config.run.logging_steps == 0 or outcome.number == last
        if due or not outcome.finite:
            self._show(lambda: self.reporter.line(line if outcome.finite else Text(line, FAULT)))

    def say(self, line: str) -> None:
        """One line on the console, never wrapped when it goes to a file."""
        self._show(lambda: self.reporter.line(line))

    def _show(self, write: Callable[[], None]) -> None:
        """Write to the console; one that is gone, as after a hang-up, keeps nothing from being saved."""
        try:
            write()
        except OSError:
            self.reporter.listened_to = False

    def evaluation(self, evaluation: Evaluation) -> None:
        """Record an evaluation on held-out text."""
        self.write(evaluation.entry())
        for line in evaluation.lines():
            self.say(line)

    def samples(self, drawn: Sequence[Sample]) -> None:
        """Keep samples with their step, and show them, set off from the log by their first line."""
        if self.samples_kept is None:
            self.samples_kept = LineFile(self.run.samples_file)
        self.samples_kept.write(*(json.dumps(vars(sample)) for sample in drawn))
        for sample in drawn:
            self.say(f"sample after step {sample.step}:\n{sample.prompt}{sample.text}\n")
            if self.trackers is not None:
                self.trackers.sample(sample)

    def write(self, entry: dict[str, Any]) -> None:
        """One line of metrics; what is not finite is written as a word and listed under non_finite."""
        odd = [key for key, value in entry.items() if isinstance(value, float) and not math.isfinite(value)]
        named = entry | {alias: entry[key] for key, alias in ALIASES.items() if key in entry}
        if odd:
            named["non_finite"] = odd
        self.metrics.write(json.dumps(jsonable(named)))
        if self.trackers is not None:
            self.trackers.log(entry["step"], tracked(entry))

    def sync(self) -> None:
        """Push what was written to the disk: a checkpoint must not be newer than its metrics."""
        for stream in self._files:
            stream.sync()

    def close(self) -> None:
        """End the bar and the files."""
        if self.progress is not None:
            self._show(self.progress.stop)
        for stream in self._files:
            stream.close()
        if self.trackers is not None:
            self.trackers.finish()

    @property
    def _files(self) -> list[LineFile]:
        return [file for file in (self.metrics, self.micro_batches, self.samples_kept) if file is not None]


class NoMetrics(MetricsLogger):
    """Of a process that writes nothing, because another one does."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    def step(self, outcome: Outcome, batch: Sequence[MicroBatch], seconds: float, epoch: float) -> None: ...

    def say(self, line: str) -> None: ...

    def samples(self, drawn: Sequence[Sample]) -> None: ...

    def write(self, entry: dict[str, Any]) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


def take_up(run: Run, first: int) -> list[str]:
    """Take lines of steps from `first` on, which are taken (again), out of a run's records.

    Lines that cannot be read are set aside in a file beside. Returns what a user should know about what is left.
    """
    notes: list[str] = []
    for file in (run.metrics_file, run.micro_batches_file, run.samples_file):
        kept, unreadable, steps = _lines_before(file, first)
        if unreadable:
            aside = file.with_name(f"{file.name}.unreadable")
            write_atomically(aside, (aside.read_bytes() if aside.is_file() else b"") + b"".join(unreadable))
            notes.append(f"{file}: {len(unreadable)} of its lines cannot be read, and are set aside in {aside.name}")
        if file.is_file() and sum(map(len, kept)) != file.stat().st_size:
            write_atomically(file, b"".join(kept))
        if file != run.samples_file and (missing := first - 1 - len(steps)):
            notes.append(f"{file} has no line for {missing:,} of the {first - 1:,} steps before; training needs none")
    return notes


def _lines_before(file: Path, first: int) -> tuple[list[bytes], list[bytes], set[int]]:
    """Lines of steps before `first`, lines that cannot be read, and the steps of the former that have a loss."""
    kept, unreadable, steps = [], [], set()
    content = b""
    if file.is_file():
        with explained(f"cannot read {file}"):
            content = file.read_bytes()
    for line in content.splitlines(keepends=True):
        try:
            entry = json.loads(line)
            step = entry["step"]
            if not isinstance(step, int):
                raise TypeError(step)
        except MALFORMED:  # the last line of a killed run may be cut short
            unreadable.append(line.rstrip(b"\n") + b"\n")
            continue
        if step < first:
            kept.append(line.rstrip(b"\n") + b"\n")
            steps |= {step} if "loss" in entry else set()
    return kept, unreadable, steps


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
