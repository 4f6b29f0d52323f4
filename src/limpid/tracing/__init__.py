"""A recorded step: redone by the mathematics, compared with the engine, explained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from limpid.terminal import say_json
from limpid.tracing.trace import Trace as Trace
from limpid.tracing.verify import StepReport as StepReport
from limpid.tracing.verify import verify_step as verify_step

if TYPE_CHECKING:
    from rich.console import Console


def show_step(
    step: Path | Trace,
    *,
    quantity: str | None = None,
    as_json: bool = False,
    everything: bool = False,
    numbers: bool = False,
    console: Console,
) -> int:
    """Open a recorded step and print it; returns 0 when nothing is wrong with it, 1 when something is.

    Raises  CheckpointError when the file is not a whole recorded step, ConfigError for an unknown quantity
    """
    from limpid.tracing import terminal, terminal_array

    trace = step if isinstance(step, Trace) else Trace.open(step)
    if as_json and quantity is not None:
        console.file.writelines(array_as_json(trace, quantity))
    elif as_json:
        say_json(trace.document(), console.file)
    elif quantity is not None:
        terminal_array.show(trace, quantity, console)
    else:
        terminal.show(trace, console, everything=everything, numbers=numbers)
    return 0 if trace.step.verdict.agrees else 1


def array_as_json(trace: Trace, asked: str) -> Iterator[str]:
    """An array as nested lists, a part along its first axis at a time; `values` is null where there is none."""
    from limpid.jsonable import jsonable

    name, tensor = trace.tensor(asked)
    if tensor not in trace.record.names:
        yield json.dumps({"name": name, "shape": None, "values": None}) + "\n"
        return
    shape = trace.record.shape(tensor)
    yield json.dumps({"name": name, "shape": shape})[:-1] + ', "values": '
    if shape:
        yield "["
        for i in range(shape[0]):
            yield (", " if i else "") + json.dumps(jsonable(trace.array(asked, (i,)).tolist()))
        yield "]"
    else:
        yield json.dumps(jsonable(trace.array(asked).tolist()))
    yield "}\n"


def explain_entry(step: Path | Trace, asked: str, *, as_json: bool = False, console: Console) -> int:
    """Explain one entry of a recorded step.

    Raises  CheckpointError when the file is not a whole recorded step, ConfigError for an unknown entry
    """
    from limpid.tracing import terminal_entry
    from limpid.tracing.schema import to_json

    found = (step if isinstance(step, Trace) else Trace.open(step)).explain(asked)
    if as_json:
        say_json(to_json(found), console.file)
    else:
        terminal_entry.show(found, console)
    return 0
