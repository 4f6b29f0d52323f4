"""The step, opened: redone by the mathematics, compared with the engine, told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from limpid.trace.document import document as document
from limpid.trace.opened import Opened as Opened
from limpid.trace.opened import opened as opened

if TYPE_CHECKING:
    from rich.console import Console


def open_step(
    path: Path, *, quantity: str | None = None, as_json: bool = False, everything: bool = False, console: Console
) -> int:
    """Open a recorded step and print it; returns 0 when all of it agrees, 1 when something does not.

    Raises  CheckpointError when the file is not a whole recorded step, ConfigError for an unknown quantity
    """
    from limpid.trace import closer, story

    step = opened(path)
    if as_json:
        found = closer.array_of(step, quantity) if quantity is not None else document(step)
        console.file.write(json.dumps(found, ensure_ascii=False) + "\n")
    elif quantity is not None:
        closer.show(step, quantity, console)
    else:
        story.tell(step, console, everything)
    return 0 if step.first_disagreement() is None else 1
