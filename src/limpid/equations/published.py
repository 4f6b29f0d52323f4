"""Numbers that others published, each computed again by the function here that answers its kind."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from limpid.equations.answers import KINDS
from limpid.errors import ConfigError


@cache
def rows() -> tuple[dict[str, Any], ...]:
    """Every published number: id, area, kind, inputs, expected, tolerance, source."""
    return tuple(json.loads(files("limpid.equations").joinpath("published.json").read_text("utf-8")))


@dataclass(frozen=True)
class Reproduced:
    """One row: whether our number lies within its tolerance, and the worst deviation in units of that."""

    row: dict[str, Any]
    ours: Any
    holds: bool
    worst: float


def reproduce(row: dict[str, Any]) -> Reproduced:
    """Compute one row again.

    Raises  ConfigError for a kind that nothing answers
    """
    if row["kind"] not in KINDS:
        raise ConfigError(f"nothing answers the kind {row['kind']!r} of {row['id']}")
    ours = KINDS[row["kind"]].answer(row["inputs"])
    worst = _worst(ours, row["expected"], row["tolerance"])
    return Reproduced(row, ours, worst <= 1, worst)


def answered(area: str | None = None) -> list[dict[str, Any]]:
    """Rows whose kind is answered, of one area or of all."""
    return [row for row in rows() if row["kind"] in KINDS and area in (None, row["area"])]


def _worst(ours: Any, expected: Any, tolerance: dict[str, Any]) -> float:
    """Largest deviation over what is tolerated; infinite where two things cannot be compared."""
    if isinstance(expected, dict):
        return max(_worst(ours.get(key), value, tolerance) if key in ours else math.inf
                   for key, value in expected.items())  # fmt: skip
    if isinstance(expected, list):
        if ours is None or len(ours) != len(expected):
            return math.inf
        return max((_worst(a, b, tolerance) for a, b in zip(ours, expected, strict=True)), default=0.0)
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        off = abs(float(ours) - expected)
        allowed = tolerance.get("abs", 0.0) + tolerance.get("rel", 0.0) * abs(expected)
        return 0.0 if off == 0 else off / allowed if allowed else math.inf
    return 0.0 if ours == expected else math.inf
