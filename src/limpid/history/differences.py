"""What differs between the configurations of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from limpid.config.options import to_dict
from limpid.run import Run


def differences(runs: Sequence[Run]) -> dict[str, tuple[Any, ...]]:
    """Options that are not the same in all of the runs, by section.name, with the value of each; None where unset.

    Raises  CheckpointError for a run whose configuration cannot be read
    """
    chosen = [dict(flat(to_dict(run.read_config()))) for run in runs]
    names = dict.fromkeys(name for options in chosen for name in options)
    rows = {name: tuple(options.get(name) for options in chosen) for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


def flat(options: dict[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Options of sections as section.name, each with its value."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from flat(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", value
