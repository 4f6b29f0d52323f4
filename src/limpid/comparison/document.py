"""A comparison as plain values, for JSON, and in a notebook."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from limpid.comparison.difference import Difference
from limpid.html import table, titled
from limpid.jsonable import jsonable

if TYPE_CHECKING:
    from limpid.comparison.verdict import Comparison

SHOWN = 12
"""Differences that a page shows, the largest."""


def document(comparison: Comparison) -> dict[str, Any]:
    """The verdict as plain values, for JSON."""
    where, outlier = comparison.first_disagreement, comparison.outlier
    return {
        "first": comparison.first.name,
        "second": comparison.second.name,
        "verdict": comparison.verdict.verdict,
        "agrees": comparison.agrees,
        "bitwise": comparison.bitwise,
        "weights": asdict(comparison.weights),
        "options": list(comparison.options),
        "first_disagreement": None if where is None else _in_json(where),
        "outlier": None if outlier is None else (comparison.first, comparison.second)[outlier].name,
        "explanations": [asdict(explanation) for explanation in comparison.explanations],
        "kernels": [jsonable(asdict(check)) for check in comparison.kernels],
        "differences": [_in_json(difference) for difference in comparison.differences],
    }


def _in_json(difference: Difference) -> dict[str, Any]:
    plain: dict[str, Any] = jsonable(asdict(difference))
    return plain


def page(comparison: Comparison) -> str:
    """The verdict, what explains it, and the largest differences."""
    where = comparison.first_disagreement
    facts = [
        ("verdict", comparison.verdict.verdict),
        ("first", comparison.first.way),
        ("second", comparison.second.way),
    ]
    facts += [("options differ", option) for option in comparison.options]
    if comparison.weights.differing:
        facts.append(("weights", f"{len(comparison.weights.differing)} of {comparison.weights.count} differ"))
    if where is not None:
        facts.append(("first disagreement", f"{where.title}: {where.worst:.3g} bounds"))
    facts += [("explained", one.words) for one in comparison.explanations]
    worst = sorted(comparison.differences, key=lambda one: -one.worst)[:SHOWN]
    rows = ((one.title, f"{one.worst:.3g}", f"{one.distance:.3g}", f"{one.size:.3g}") for one in worst)
    differences = table(rows, ("quantity", "bounds", "difference", "size"), numbers=(1, 2, 3))
    return titled(f"{comparison.first.name} against {comparison.second.name}", table(facts), differences)
