"""What the page is sent, as typed documents; `python -m limpid.view` writes their JSON Schema and TypeScript's types.

Numbers that are not finite are the words nan, inf and -inf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
class EquationDocument:
    """One equation of the catalogue."""

    name: str
    kind: str
    purpose: str
    signature: str
    equation: str  # LaTeX
    adjoint: tuple[str, ...]  # LaTeX, a line per input
    branch: str
    stages: tuple[str, ...]
    source: str
    file: str
    line: int


@dataclass(frozen=True)
class EquationsView:
    """The whole catalogue, with MathML of every line."""

    equations: tuple[EquationDocument, ...]
    mathml: dict[str, str]


DOCUMENTS = (StepView, EntryView, EquationsView)
