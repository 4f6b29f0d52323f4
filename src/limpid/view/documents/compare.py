"""Two of anything held against each other, and a step with something of it changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from limpid.tracing.stations import Station

Bounds = Literal["here", "to come", "none"]
"""Of what rounding allows: known, made by a job when asked for, or not to be had."""


@dataclass(frozen=True)
class OptionDifference:
    """An option that two runs do not have in common."""

    name: str  # section.name
    a: Any
    b: Any


@dataclass(frozen=True)
class ComparedRow:
    """One array of both."""

    name: str
    station: Station
    block: int | None
    kind: Literal["forward", "backward", "update", "weight"]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    relative: float  # ‖a - b‖ / ‖b‖
    largest: float  # |a - b| of the entry where it is largest
    index: tuple[int, ...]  # of that entry
    a: float
    b: float
    bound: float | None  # of rounding alone, there, in a; None where nothing was redone
    share: float | None  # the largest |a - b| / bound of all entries
    not_finite: int  # entries of which one or the other is not finite, and they differ


@dataclass(frozen=True)
class Losses:
    """Nats per label of both."""

    a: float
    b: float


@dataclass(frozen=True)
class ComparedDocument:
    """Two recorded steps, checkpoints, runs or variants of one computation, held against each other."""

    a: str
    b: str
    kind: Literal["steps", "checkpoints", "runs", "variants"]  # of variants, bounds are of vectors along the last axis
    options: tuple[OptionDifference, ...]
    same_batch: bool | None
    loss: Losses | None
    rows: tuple[ComparedRow, ...]
    bounds: Bounds
    alone: tuple[str, ...]  # arrays that only one has, or with other shapes
    notes: tuple[str, ...] = ()  # what no row says


@dataclass(frozen=True)
class ChangedRow:
    """One array before and after what was changed."""

    name: str
    station: Station
    block: int | None
    kind: Literal["forward", "backward", "update"]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    relative: float  # ‖after - before‖ / ‖before‖
    largest: float
    index: tuple[int, ...]
    before: float
    after: float
    not_finite: int


@dataclass(frozen=True)
class BeforeAfter:
    """One number before and after what was changed."""

    before: float
    after: float


@dataclass(frozen=True)
class WhatIfDocument:
    """A recorded step done again in float64, once as it was and once with something changed."""

    result: str  # slices of it are asked for by this name
    loss: BeforeAfter
    grad_norm: BeforeAfter
    rows: tuple[ChangedRow, ...]
