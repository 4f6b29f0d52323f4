"""What other formats would do to the loss of a recorded step, as plain values: for JSON and the page. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limpid.operations.what_if import Predicted, Row, WhatIf

WITHIN = 1e-3
"""Of the loss: what a format may move it by, where nothing else is said."""
FORMATS = ("fp8", "e5m2", "bf16", "fp16")
"""That operations are tried in."""


@dataclass(frozen=True)
class AgainDocument:
    """Whether a recorded step can be taken again, and of what."""

    why: str  # it cannot; else nothing
    model: str
    precision: str
    formats: tuple[str, ...]  # that its operations can be tried in


@dataclass(frozen=True)
class PredictedDocument:
    """A change of the loss that is foretold."""

    calls: int
    change: float
    at_most: float  # the size that it does not exceed
    deviation: float
    is_value: bool  # right up to a factor of 1.5; else a size is said alone
    is_changed: bool  # whether the format rounds anything there


@dataclass(frozen=True)
class AskedDocument:
    """One of the parts that are asked for, all of them changed."""

    module: str
    format: str
    adds: float  # to the loss, to first order


@dataclass(frozen=True)
class FormatsRow:
    """A module by itself in each format."""

    module: str
    formats: dict[str, PredictedDocument]
    narrowest: str  # format that moves the loss by 0.1% at most; nothing where it has to stay


@dataclass(frozen=True)
class FormatsDocument:
    """What other formats of some operations would do to the loss: foretold and tried; every module by itself."""

    loss: float
    asked: dict[str, str]
    predicted: PredictedDocument | None  # none where nothing was asked for, as below
    parts: tuple[AskedDocument, ...]
    tried: float | None
    holds: bool | None  # what was tried is within what was foretold
    rows: tuple[FormatsRow, ...]


def document(found: WhatIf) -> FormatsDocument:
    """Of what was asked for."""
    parts = tuple(AskedDocument(one.module, one.format, one.adds) for one in found.parts)
    predicted, rows = predicted_document(found.predicted), rows_of(found.loss, found.rows)
    return FormatsDocument(found.loss, dict(found.asked), predicted, parts, found.tried, found.holds, rows)


def rows_of(loss: float, rows: tuple[Row, ...]) -> tuple[FormatsRow, ...]:
    """Modules of which a format rounds anything."""
    return tuple(
        FormatsRow(row.module, _formats(row.formats), row.narrowest(WITHIN * abs(loss)))
        for row in rows
        if any(one.size for one in row.formats.values())
    )


def of_modules(loss: float, rows: tuple[Row, ...]) -> FormatsDocument:
    """Every module by itself alone."""
    return FormatsDocument(loss, {}, None, (), None, None, rows_of(loss, rows))


def predicted_document(told: Predicted) -> PredictedDocument:
    return PredictedDocument(told.calls, told.change, told.at_most, told.deviation, told.is_value, told.size > 0)


def _formats(told: Mapping[str, Predicted]) -> dict[str, PredictedDocument]:
    return {form: predicted_document(one) for form, one in told.items()}
