"""`limpid runs`: what runs there are, how they stand, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from limpid.config.flags import read
from limpid.errors import ConfigError

if TYPE_CHECKING:
    from limpid.history import Summary
    from limpid.reporter import Reporter
    from limpid.run import Run


@dataclass(frozen=True)
class RunsFlags:
    """What runs there are and how they stand; of one everything, of several what differs between them.

    limpid runs                        every run under runs/
    limpid runs last                   one of them, and its options
    limpid runs 001 002                how they came out, and what differs
    limpid runs 002 --tag baseline --note "warm-up twice as long"
    limpid runs --tag baseline         those with this tag
    limpid runs 001 --delete
    """

    what: tuple[str, ...] = field(default=(), metadata={"positional": "RUN"})
    """Runs, names under runs/, or `last`; a folder of runs lists those in it."""
    sort: Literal["name", "loss", "time", "size"] = "name"
    """Order of the list: name, validation loss (the lowest first), time last written, or size on the disk."""
    tag: tuple[str, ...] = ()
    """Give the runs that are named this tag; with no run named, list those that have it."""
    untag: tuple[str, ...] = ()
    """Take a tag away."""
    note: str | None = None
    """Write a note beside the runs that are named; an empty one takes it away."""
    delete: bool = False
    """Delete the runs that are named, after a question."""
    yes: bool = False
    """Delete without asking."""
    json: bool = False
    """Print one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("runs", RunsFlags, argv)
    from limpid.history import summarise
    from limpid.reporter import Reporter

    with Reporter(flags.json) as reporter:
        folder = _folder(flags.what)
        if folder is not None:
            return _list(flags, folder, reporter)
        runs = _named(flags)
        if flags.delete:
            return _delete(runs, flags.yes, reporter)
        if flags.tag or flags.untag or flags.note is not None:
            _label(runs, flags)
        _show([summarise(run) for run in runs], reporter)
    return 0


def _folder(what: Sequence[str]) -> Path | None:
    """The folder whose runs are to be listed: runs/, or the one that is named."""
    from limpid.run import RUNS
    from limpid.source import find_source, known_runs

    if not what:
        return RUNS
    place = Path(what[0])
    return place if len(what) == 1 and place.is_dir() and not find_source(place) and known_runs(place) else None


def _named(flags: RunsFlags) -> list[Run]:
    from limpid.source import find_run

    return list({run.path.resolve(): run for run in map(find_run, flags.what)}.values())


def _list(flags: RunsFlags, folder: Path, reporter: Reporter) -> int:
    from limpid.history import summarise
    from limpid.history.terminal import RunTable
    from limpid.source import known_runs

    for name in ("untag", "note", "delete"):
        if getattr(flags, name) not in ((), None, False):
            raise ConfigError(f"--{name} needs a run: name it, as in limpid runs last --{name}")
    found = [summarise(run) for run in known_runs(folder)]
    kept = [one for one in found if set(flags.tag) <= set(one.labels.tags)]
    orders = {
        "name": lambda one: one.name,
        "loss": lambda one: float("inf") if one.eval_loss is None else one.eval_loss,
        "time": lambda one: one.run.last_written(),
        "size": lambda one: one.size,
    }
    kept.sort(key=orders[flags.sort])
    reporter.document([one.document() for one in kept])
    if kept:
        reporter.line(RunTable(kept))
    else:
        tagged = f" with the tag {', '.join(flags.tag)}" if flags.tag else ""
        reporter.line(f"there is no run{tagged} under {folder}/; start one with limpid train")
    return 0


def _show(summaries: list[Summary], reporter: Reporter) -> None:
    from limpid.history import differences
    from limpid.history.terminal import comparison, details

    document: dict[str, Any] = {"runs": [one.document() for one in summaries]}
    if len(summaries) == 1:
        document["samples"] = [vars(sample) for sample in summaries[0].run.read_samples()]
    if len(summaries) > 1:
        document["differences"] = [
            {"option": name, "values": values} for name, values in differences([one.run for one in summaries]).items()
        ]
    reporter.document(document)
    reporter.line(details(summaries[0]) if len(summaries) == 1 else comparison(summaries))


def _label(runs: list[Run], flags: RunsFlags) -> None:
    from limpid.history import Labels

    changed = [(run, Labels.of(run).changed(flags.tag, flags.untag, flags.note)) for run in runs]
    for run, labels in changed:
        labels.write(run)


def _delete(runs: list[Run], without_asking: bool, reporter: Reporter) -> int:
    """Delete runs, each after a question; 1 when one was kept."""
    from limpid.history import summarise
    from limpid.history.deletion import confirmed, delete, question

    deleted, kept = [], []
    for run in runs:
        if without_asking or confirmed(question(summarise(run))):
            delete(run)
            reporter.line(f"deleted {run.path}")
            deleted.append(str(run.path))
        else:
            reporter.line(f"kept {run.path}")
            kept.append(str(run.path))
    reporter.document({"deleted": deleted, "kept": kept})
    return 1 if kept else 0
