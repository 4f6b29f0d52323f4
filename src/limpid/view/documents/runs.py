"""A list of runs, one run, its curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from limpid.doctor.finding import Finding
from limpid.history.summary import State
from limpid.jsonable import Finite
from limpid.metrics import Sample


@dataclass(frozen=True)
class Points:
    """A curve in few points."""

    x: tuple[Finite, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class RunRow:
    """A run as the list shows it: read from the ends of its files, so that long runs cost no more than short ones."""

    name: str
    state: State
    why: str  # it cannot be read, or ended
    step: int
    max_steps: int
    loss: float | None  # nats per token, of the last step
    eval_loss: float | None  # nats per token, of the last evaluation near the end of the file
    num_tokens: int | None
    tokens_per_second: float | None
    last_written: Finite  # seconds since 1970
    tags: tuple[str, ...]
    note: str
    findings: int  # of the doctor, without notices
    curve: Points  # the loss at some steps


@dataclass(frozen=True)
class RunList:
    """Every run of a folder, the one that was written to last first."""

    folder: str
    runs: tuple[RunRow, ...]
    recordings: tuple[str, ...]  # of the calls of a step, beside the runs


@dataclass(frozen=True)
class RunOverview:
    """One run: how it stands, what it was configured to be, what is left of it."""

    row: RunRow
    parameters: int | None
    best_eval_loss: float | None  # nats per token
    config: dict[str, dict[str, Any]]  # by section
    columns: tuple[str, ...]  # of its metrics
    recorded: tuple[int, ...]  # steps
    opened_first: int | None  # the first step that can be opened: replayed where it was not recorded
    opened_last: int | None
    checkpoints: tuple[int, ...]  # the steps that they were saved after
    best_checkpoint: int | None
    findings: tuple[Finding, ...]
    samples: tuple[Sample, ...]  # the newest
    after: str  # where its events go on


@dataclass(frozen=True)
class Column:
    """One column of metrics, in few enough points to draw: the extremes of each stretch, and what is not finite."""

    x: tuple[Finite, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None  # of the 95 % interval of a mean
    high: tuple[float, ...] | None
    step: tuple[int, ...]  # that each point is of
    count: int  # points that these were chosen from


@dataclass(frozen=True)
class MetricsDocument:
    """Columns of a run's metrics along one axis."""

    run: str
    along: Literal["step", "tokens", "time"]
    columns: dict[str, Column]
    after: str  # where its events go on


@dataclass(frozen=True)
class StateDocument:
    """How far a run is."""

    state: State
    step: int
    max_steps: int
