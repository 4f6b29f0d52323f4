"""A recorded step: redone by the mathematics, compared with the engine, explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from limpid.jsonable import jsonable
from limpid.trace.document import document as document
from limpid.trace.verify import StepReport as StepReport
from limpid.trace.verify import verify_step as verify_step

if TYPE_CHECKING:
    from rich.console import Console


def explain_entry(path: Path | None, asked: str, *, as_json: bool = False, console: Console) -> int:
    """Explain one entry of a recorded step, or of the worked model when there is no path.

    Raises  CheckpointError when the file is not a whole recorded step, ConfigError for an unknown entry
    """
    from limpid.trace.explain import Computed, Recorded, Step, explain, in_json
    from limpid.trace.record import Record

    step: Step
    if path is None:
        from limpid.trace.worked import WORDS, worked_step

        step = Computed(worked_step(), WORDS)
    else:
        step = Recorded(Record(path))
    found = explain(step, asked)
    if as_json:
        console.file.write(json.dumps(jsonable(in_json(found)), ensure_ascii=False) + "\n")
    else:
        from limpid.trace.terminal_entry import tell

        tell(found, console)
    return 0


def open_step(
    path: Path, *, quantity: str | None = None, as_json: bool = False, everything: bool = False, console: Console
) -> int:
    """Open a recorded step and print it; returns 0 when all of it agrees, 1 when something does not.

    Raises  CheckpointError when the file is not a whole recorded step, ConfigError for an unknown quantity
    """
    from limpid.trace import quantity as quantity_view
    from limpid.trace import terminal

    step = verify_step(path)
    if as_json:
        found = quantity_view.array_of(step, quantity) if quantity is not None else document(step)
        console.file.write(json.dumps(found, ensure_ascii=False) + "\n")
    elif quantity is not None:
        quantity_view.show(step, quantity, console)
    else:
        terminal.tell(step, console, everything)
    return 0 if step.agrees else 1
