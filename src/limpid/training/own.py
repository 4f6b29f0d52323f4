"""What a run trains with that no configuration can name: a user's own objective and own source of batches."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limpid.errors import CheckpointError, ConfigError
from limpid.files import parse_json, write_atomically
from limpid.objectives import Objective
from limpid.run import Run
from limpid.training.stored_batches import BatchSource

ASKED = {"objective": ("name", "labels", "loss"), "batches": ("batch", "epoch")}
"""What each is asked for: see limpid.objectives.Objective and limpid.training.stored_batches.BatchSource."""


@dataclass(frozen=True)
class Own:
    """A user's objective and source of batches; None where the run has limpid's."""

    objective: Objective | None = None
    batches: BatchSource | None = None

    def __post_init__(self) -> None:
        for name, asked in ASKED.items():
            given = getattr(self, name)
            lacking = [] if given is None else [one for one in asked if not hasattr(given, one)]
            if lacking:
                raise ConfigError(f"{name} is of type {type(given).__name__}, which has no {lacking[0]}")

    def names(self) -> dict[str, str]:
        """What is the user's own, by its name."""
        found: dict[str, Any] = {"objective": getattr(self.objective, "name", None)}
        found["batches"] = None if self.batches is None else type(self.batches).__name__
        return {kind: str(name) for kind, name in found.items() if name is not None}

    def write(self, run: Run) -> None:
        """Note it in a new run's folder: without it no step of the run can be taken again."""
        if self.names():
            write_atomically(_file(run), (json.dumps(self.names()) + "\n").encode())

    def require_as_before(self, run: Run) -> None:
        """Raise CheckpointError where a run was begun with something else."""
        try:
            before = parse_json(_file(run).read_bytes()) if _file(run).is_file() else {}
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{_file(run)} cannot be read: bring the run's own back") from error
        for kind in ASKED:
            began, given = before.get(kind), self.names().get(kind)
            if began != given:
                raise CheckpointError(
                    f"{run.path} was begun with {_said(began)} {kind}, and would go on with {_said(given)}: give the "
                    "same in Python, limpid.resume(…); steps that were recorded open without"
                )


NOTHING = Own()
"""What a run has whose objective and batches are limpid's."""


def _said(name: str | None) -> str:
    return "limpid's own" if name is None else repr(name)


def _file(run: Run) -> Path:
    return run.path / "own.json"
