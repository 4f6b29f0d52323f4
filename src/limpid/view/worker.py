"""`python -m limpid.view.worker QUESTION`: one piece of work of the page's server, in a process of its own.

The question is JSON; how far it is, is said in lines of JSON on standard output.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from limpid.errors import CheckpointError, LimpidError
from limpid.reporter import Report
from limpid.terminal import say_json

OFTEN = 0.1
"""Seconds between two lines that say how far it is."""


def record(asked: Mapping[str, Any], report: Report) -> None:
    """Record a step of a run where it was not, and make its document."""
    from limpid.run import Run
    from limpid.view.steps import is_viewed, make_view

    run, number = Run(Path(asked["run"])), int(asked["step"])
    file = run.recorded_step(number)
    if not file.is_file():
        from limpid.training.allocator import keep_freed_memory, share_one_heap
        from limpid.training.replay import record_past

        keep_freed_memory()
        share_one_heap()
        file.parent.mkdir(exist_ok=True)
        record_past(run, number, report)
    make_view(file, report)
    if not is_viewed(file):
        raise CheckpointError(f"{file.parent} cannot be written to: what the page shows of step {number} has no place")


def exact(asked: Mapping[str, Any], report: Report) -> None:
    """Redo one array of a recorded step in float64."""
    from limpid.run import Run
    from limpid.view.steps import open_arrays

    report("redoing it in float64", 0, None)
    open_arrays(Run(Path(asked["run"])).recorded_step(int(asked["step"]))).redo(str(asked["name"]))


def bounds(asked: Mapping[str, Any], report: Report) -> None:
    """Work out what rounding allows between two recorded steps."""
    from limpid.view.bounds import make

    make(Path(asked["a"]), Path(asked["b"]), report)


def variants(asked: Mapping[str, Any], report: Report) -> None:
    """Compare two variants of one computation."""
    from limpid.view.kept_variants import make

    make(asked, report)


def formats(asked: Mapping[str, Any], report: Report) -> None:
    """Try other formats of a recorded step's operations."""
    from limpid.view.kept_formats import make

    make(asked, report)


Work = Callable[[Mapping[str, Any], Report], None]
WORK: dict[str, Work] = {"record": record, "exact": exact, "bounds": bounds, "variants": variants, "formats": formats}


def main(question: str) -> int:
    """Do what is asked; returns the exit code."""
    last = 0.0

    def report(doing: str, done: int, total: int | None = None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= OFTEN or done == total:
            last = now
            say_json({"doing": doing, "done": done, "total": total})

    asked = json.loads(question)
    try:
        WORK[asked["work"]](asked, report)
    except LimpidError as error:
        say_json({"error": str(error)})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
