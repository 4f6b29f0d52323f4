"""One recorded step, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from limpid.doctor.finding import Finding
from limpid.tracing.document import EntryDocument, StepDocument

SliceKind = Literal["value", "gradient", "exact", "difference", "share"]


@dataclass(frozen=True)
class ArrayPlace:
    """An array of a recorded step that slices and tiles can be asked of."""

    shape: tuple[int, ...]
    format: str
    axes: tuple[str, ...]
    kinds: tuple[SliceKind, ...]


@dataclass(frozen=True)
class StepView:
    """A recorded step: its document, its equations to show, and what arrays it has."""

    step: StepDocument
    mathml: dict[str, str]  # by the LaTeX that the document has
    arrays: dict[str, ArrayPlace]
    tokens: tuple[tuple[str, ...], ...]  # the text of every token that the model read, by row
    words: dict[str, str]  # the text of every id in the batch
    record_bytes: int


@dataclass(frozen=True)
class EntryView:
    """One entry explained, with its equations to show."""

    entry: EntryDocument
    mathml: dict[str, str]


@dataclass(frozen=True)
class StepPoint:
    """A number of one recorded step."""

    step: int
    value: float


@dataclass(frozen=True)
class OverSteps:
    """An entry, or the norm of an array, over the recorded steps of a run that have it."""

    run: str
    name: str
    is_norm: bool
    points: tuple[StepPoint, ...]
    left: int  # recorded steps that were not read yet: asked again, they are


@dataclass(frozen=True)
class PlacedFinding:
    """A finding of the doctor, and where in a step it points."""

    number: int  # among the findings of the run
    finding: Finding
    station: str  # its title
    name: str | None  # an array of the step
    index: tuple[int, ...]  # of an entry; empty where it names none


@dataclass(frozen=True)
class FindingsView:
    """The doctor's findings of a run that point into one of its steps."""

    findings: tuple[PlacedFinding, ...]
