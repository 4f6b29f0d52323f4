"""Deleting a run: what goes with it, and what keeps it from being deleted."""

from __future__ import annotations

import re
import sys

from rich.filesize import decimal

from limpid.errors import CheckpointError, ConfigError
from limpid.history.labels import FILE
from limpid.history.summary import Summary
from limpid.lock import LOCK
from limpid.manifest import MANIFEST
from limpid.run import STARTING, TOKENIZER_FILES, Run
from limpid.run_folder import remove_run
from limpid.terminal import say

WRITTEN = {
    "config.toml", *TOKENIZER_FILES, MANIFEST, "own.json", "batches", "adapter",
    "metrics.jsonl", "micro_batches.jsonl", "ledger.jsonl", "findings.jsonl",
    "not_examined.jsonl",
    "samples.jsonl", "trackers.json", "wandb",
    "checkpoints", "model", "steps", "inspect", "evaluate", "tensorboard", "curves.png", FILE, LOCK, STARTING,
    "metrics.jsonl.unreadable", "micro_batches.jsonl.unreadable", "ledger.jsonl.unreadable",
}  # fmt: skip
"""What a run writes into its folder."""
UNFINISHED = re.compile(r"after-\d+(-\d+)?|\..+\.(writing|retired)")
"""What was set aside when an earlier step was resumed, and what a write that was killed leaves."""


def question(one: Summary) -> str:
    """What is asked before a run is deleted."""
    return f"delete {one.run.path} ({one.step:,} steps, {decimal(one.size)})? [y/N] "


def confirmed(text: str) -> bool:
    """Whether the user says yes.

    Raises  ConfigError where nobody can be asked
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(f"{text.partition('?')[0]}: nobody is here to be asked; give --yes")
    say(text, end="", file=sys.stderr)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def delete(run: Run) -> None:
    """Delete a run.

    Raises  CheckpointError when a process writes it, when it holds something that is not its own, and for what stays
    """
    foreign = sorted(
        entry.name for entry in run.path.iterdir() if entry.name not in WRITTEN and not UNFINISHED.fullmatch(entry.name)
    )
    if foreign:
        raise CheckpointError(f"{run.path} holds {', '.join(foreign)}, which no run writes: move it away first")
    remove_run(run)
    if run.path.exists():
        raise CheckpointError(f"{run.path} could not be deleted whole: look at what is left, and who may write there")
