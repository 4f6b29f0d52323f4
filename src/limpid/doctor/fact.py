"""One thing that a loop does, as measured on one step, and how far two runs' values of it may lie apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from limpid.doctor.rules.baseline import NOT_AS_BASELINE

Kind = Literal["exact", "if there", "given", "setting", "share", "level", "size", "told"]
"""How values are compared; what is told alone is not: losses of a few rows lie anywhere."""
MEASURED = ("if there", "share", "level", "size")
"""What is there or not as names and formulas are, which have facts of their own."""
NEAR = 1.01
"""The factor within which a setting is the same."""
NOTHING = 1e-6
"""Below which a level is what rounding leaves of 0."""
SCATTER = 3.0
"""Standard deviations of a share among so many rows."""


@dataclass(frozen=True)
class Fact:
    """One thing that a loop does."""

    part: str
    name: str
    value: Any  # a number, a word or a list of them
    kind: Kind = "exact"
    rows: int = 0  # that a share is of
    declared: bool = False  # what the user gave as an argument: another value is another choice

    def agrees(self, other: Fact) -> bool:
        """Whether another run's value is the same, as far as other batches and another seed leave it so."""
        a, b = self.value, other.value
        if self.kind in ("exact", "if there", "given") or not (
            isinstance(a, int | float) and isinstance(b, int | float)
        ):
            return bool(a == b)
        if self.kind == "share":
            mean = min(1.0, max(0.0, (a + b) / 2))
            scatter = math.sqrt(mean * (1 - mean) / max(1, min(self.rows, other.rows)))
            return bool(abs(a - b) <= max(NOT_AS_BASELINE["share"], SCATTER * scatter))
        if max(abs(a), abs(b)) < NOTHING:
            return True
        if not (math.isfinite(a) and math.isfinite(b)) or a * b <= 0:
            return str(a) == str(b)
        factors = {"setting": NEAR, "level": NOT_AS_BASELINE["level"], "size": NOT_AS_BASELINE["size"]}
        return bool(max(a / b, b / a) <= factors[self.kind])

    def is_among(self, seen: Sequence[Fact]) -> bool:
        """Whether a value is one of those that were seen, or a number between them or near one."""
        if any(self.agrees(one) for one in seen):
            return True
        numbers = [one.value for one in seen if isinstance(one.value, int | float)]
        between = self.kind in MEASURED and len(numbers) == len(seen) and isinstance(self.value, int | float)
        return bool(between and min(numbers) <= self.value <= max(numbers))

    @property
    def shown(self) -> str:
        """The value as it is printed."""
        return shown(self.value)

    def __str__(self) -> str:
        return f"{self.name} {self.shown}"


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
