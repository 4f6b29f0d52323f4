"""Two variants of one computation beside each other: what `limpid compare` judges, down to each cell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from limpid.quantities import parameters
from limpid.tracing.verdict import Holds
from limpid.view.compare import row_of
from limpid.view.documents.compare import ComparedDocument, ComparedRow, Losses
from limpid.view.pairs import VectorPair

if TYPE_CHECKING:
    from limpid.comparison.difference import Difference
    from limpid.comparison.verdict import Comparison


@dataclass(frozen=True)
class Beside:
    """What is compared of two variants, and the arrays of both by title."""

    document: ComparedDocument
    pairs: dict[str, VectorPair]


def beside(comparison: Comparison, a: str, b: str) -> Beside:
    """A comparison whose variants are called a and b."""
    axes = _axes(comparison)
    pairs = {one.title: _pair(comparison, one) for one in comparison.differences}
    rows = tuple(_row(one, pairs[one.title], axes.get(one.name, ())) for one in comparison.differences)
    sides = (comparison.first, comparison.second)
    loss = [side.values.get("loss") for side in sides]
    losses = None if loss[0] is None or loss[1] is None else Losses(float(loss[0]), float(loss[1]))
    alone = comparison.weights.differing
    notes = _notes(comparison, (a, b), rows)
    return Beside(ComparedDocument(a, b, "variants", (), True, losses, rows, "here", alone, notes), pairs)


def _axes(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    formed = {one.name: one.axes for one in comparison.first.objective.quantities(comparison.config)}
    return formed | {one.name: one.axes for one in parameters(comparison.config)}


def _pair(comparison: Comparison, one: Difference) -> VectorPair:
    """One quantity of both in the shape that the mathematics has it in."""
    limit = comparison.limits[one.title]
    found = []
    for side in (comparison.first, comparison.second):
        if one.kind == "step":
            found.append(np.asarray(side.grad_norm, np.float64))
            continue
        array = np.asarray((side.gradients if one.kind == "backward" else side.values)[one.name])
        found.append(array if array.ndim == 0 else array.reshape(*limit.shape, -1))
    return VectorPair(one.title, found[0], found[1], limit=limit)


def _row(one: Difference, pair: VectorPair, axes: tuple[str, ...]) -> ComparedRow:
    """One quantity, with the entry of its worst vector that is furthest apart."""
    a, b = np.asarray(pair.a), np.asarray(pair.b)
    row = row_of(one.title, "forward" if one.kind == "forward" else "backward", axes if a.ndim else (), a, b)
    apart = np.abs(a[one.index] - b[one.index])
    within = np.unravel_index(int(np.argmax(np.nan_to_num(apart, nan=np.inf))), apart.shape)
    index = (*one.index, *map(int, within))
    return replace(
        row, index=index, a=float(a[index]), b=float(b[index]), largest=float(abs(a[index] - b[index])),
        bound=float(pair.limit[one.index]), share=one.worst, station="update" if one.kind == "step" else row.station,
    )  # fmt: skip


def _notes(comparison: Comparison, names: tuple[str, str], rows: tuple[ComparedRow, ...]) -> tuple[str, ...]:
    """What no row says: how both run, which options differ, what explains the difference, and what else is wrong."""
    sides = zip(names, (comparison.first, comparison.second), strict=True)
    beyond = any(row.share is None or not row.share <= 1 for row in rows)
    elsewhere = not beyond and not isinstance(comparison.verdict, Holds)
    return (
        *(f"{name}: {side.way}" for name, side in sides if side.way != name),
        *(f"options differ: {one}" for one in comparison.options),
        *(f"explained by: {one.words}" for one in comparison.explanations),
        *((f"a kernel that was redone by itself: {comparison.verdict.verdict}",) if elsewhere else ()),
    )
