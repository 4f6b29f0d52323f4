"""Runs in the terminal: a table of them, one of them, and what differs between some."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.filesize import decimal
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from limpid.config import TrainConfig
from limpid.config.options import to_dict
from limpid.console import UNLIMITED
from limpid.history.differences import differences, flat
from limpid.history.summary import State, Summary
from limpid.theme import FAULT, GOOD, HEADING, QUIET, WARNING

STYLES: dict[State, str] = {"training": GOOD, "diverged": FAULT, "unreadable": FAULT, "stopped": WARNING}


@dataclass(frozen=True)
class RunTable:
    """A line for each run; tags and notes stand beside it, or where the screen is too narrow for them below all."""

    summaries: Sequence[Summary]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        labelled = [one for one in self.summaries if _labels(one)]
        beside = self._table(with_labels=bool(labelled))
        if (
            not labelled
            or Measurement.get(console, options.update(width=UNLIMITED), beside).maximum <= options.max_width
        ):
            yield beside
            return
        yield self._table(with_labels=False)
        yield Text("")
        below = Table("run", Column("tags, note", overflow="fold"), box=None, pad_edge=False, header_style=HEADING)
        for one in labelled:
            below.add_row(one.name, _labels(one))
        yield below

    def _table(self, with_labels: bool) -> Table:
        shown = Table(box=None, pad_edge=False, header_style=HEADING)
        shown.add_column("run", overflow="fold")
        for name in ("state", "step", "loss", "val. loss", "params", "steps took", "disk"):
            shown.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
        if with_labels:
            shown.add_column("tags, note", overflow="fold")
        for one in self.summaries:
            words: list[str | Text] = [one.name, Text(one.state, STYLES.get(one.state, "")), *_numbers(one)]
            shown.add_row(*words, *([_labels(one)] if with_labels else []))
        return shown


def _numbers(one: Summary) -> Iterator[str]:
    if one.state == "unreadable":
        yield from ("", "", "", "", "")
    else:
        yield f"{one.step:,}" if one.step == one.max_steps else f"{one.step:,} of {one.max_steps:,}"
        yield "" if one.loss is None else f"{one.loss:.4f}"
        yield "" if one.eval_loss is None else f"{one.eval_loss:.4f}"
        yield count(one.parameters)
        yield duration(one.seconds)
    yield decimal(one.size)


def details(one: Summary) -> RenderableType:
    """Everything about one run, and the options in which it is not the default."""
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(style=QUIET)
    shown.add_column(overflow="fold")
    written = datetime.datetime.fromtimestamp(one.run.path.stat().st_mtime).astimezone()
    rows: dict[str, Any] = {
        "folder": str(one.run.path),
        "state": Text(one.state, STYLES.get(one.state, "")),
        "problem": one.problem,
        "tags": ", ".join(one.labels.tags),
        "note": one.labels.note,
        "steps": f"{one.step:,} of {one.max_steps:,}" if one.max_steps else "",
        "loss": "" if one.loss is None else f"{one.loss:.4f} nats per token, in the last step",
        **_validation(one),
        "parameters": f"{one.parameters:,}" if one.parameters else "",
        "tokens": f"{one.tokens:,}" if one.tokens else "",
        "steps took": duration(one.seconds) if one.seconds else "",
        "on the disk": decimal(one.size),
        "checkpoints": "after steps " + ", ".join(map(str, one.run.checkpoint_steps())),
        "last written": f"{written:%Y-%m-%d %H:%M}",
        **_samples(one),
    }
    for name, value in rows.items():
        if value:
            shown.add_row(name, value)
    if one.state == "unreadable":
        return shown
    usual = dict(flat(to_dict(TrainConfig())))
    chosen = {key: value for key, value in flat(to_dict(one.run.read_asked())) if value != usual.get(key)}
    options = Table("option", "value", "default", box=None, pad_edge=False, header_style=HEADING)
    for key, value in chosen.items():
        options.add_row(key, said(value), said(usual.get(key)))
    return Group(shown, Text(""), options)


def _validation(one: Summary) -> dict[str, str]:
    """The last and the best loss of every validation set, and of the averaged weights."""
    if one.eval_loss is None or one.best_eval_loss is None:
        return {}
    shown = {
        "validation loss": f"{one.eval_loss:.4f} nats per token, in the last evaluation; best {one.best_eval_loss:.4f}"
    }
    return shown | {_named(of): f"{last:.4f}; best {best:.4f}" for of, (last, best) in one.other_eval_losses.items()}


def _named(of: str) -> str:
    """A row for the loss of a further validation set, or of averaged weights."""
    return f"validation loss {of}" if of.startswith("of ") else f"validation loss, {of}"


def _samples(one: Summary) -> dict[str, str]:
    """What the model made of each prompt last, and how often it was asked."""
    samples = one.run.read_samples()
    last = {sample.prompt: f"after step {sample.step}: {sample.prompt}{sample.text}" for sample in samples}
    names = [f"sample {number}" if len(last) > 1 else "sample" for number in range(1, len(last) + 1)]
    steps = len({sample.step for sample in samples})
    kept = {"samples": f"of {steps} steps in {one.run.samples_file}"} if steps > 1 else {}
    return kept | dict(zip(names, last.values(), strict=True))


def comparison(summaries: Sequence[Summary]) -> RenderableType:
    """How runs came out, and the options in which they differ, a column for each run."""
    shown = Table("", *(one.name for one in summaries), box=None, pad_edge=False, header_style=HEADING)
    for column in shown.columns:
        column.overflow = "fold"
    outcomes: dict[str, list[str]] = {
        "state": [one.state for one in summaries],
        "step": [f"{one.step:,}" for one in summaries],
        "loss": [said(one.loss) for one in summaries],
        "validation loss": [said(one.eval_loss) for one in summaries],
        "best validation loss": [said(one.best_eval_loss) for one in summaries],
        **{
            _named(of): [said(one.other_eval_losses.get(of, (None, None))[0]) for one in summaries]
            for of in dict.fromkeys(of for one in summaries for of in one.other_eval_losses)
        },
        "parameters": [f"{one.parameters:,}" for one in summaries],
        "tokens": [f"{one.tokens:,}" for one in summaries],
        "steps took": [duration(one.seconds) for one in summaries],
    }
    for name, words in outcomes.items():
        shown.add_row(name, *words, style="" if len(set(words)) > 1 else QUIET)
    rows = differences([one.run for one in summaries])
    if not rows:
        return Group(shown, Text("\ntheir configurations are equal"))
    shown.add_section()
    shown.add_row("")
    for key, values in rows.items():
        shown.add_row(key, *map(said, values))
    return shown


def said(value: Any) -> str:
    """An option's value, or a loss, in words."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.4f}" if isinstance(value, float) and abs(value) >= 1 else str(value)


def count(number: float) -> str:
    """Three digits and a letter: 10.7M."""
    for power, letter in ((12, "T"), (9, "B"), (6, "M"), (3, "k")):
        if number >= 10**power:
            return f"{number / 10**power:.3g}{letter}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """Seconds below a minute, h:mm:ss above."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(datetime.timedelta(seconds=round(seconds)))


def _labels(one: Summary) -> str:
    return "; ".join(filter(None, (", ".join(one.labels.tags), one.labels.note)))
