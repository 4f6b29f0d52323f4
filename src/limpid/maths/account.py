"""By how much rounding moved the loss, to first order, and which operations did it; beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

PLAIN = 0.2
"""Contributions cancel where their sum is less than this share of the sum of their sizes."""
SHOWN = 8


@dataclass(frozen=True)
class Share:
    """What operations that belong together add to the number."""

    name: str
    calls: int
    error: float  # by their own rounding
    inherited: float  # by way of values that have no gradient of their own, such as rotary tables


@dataclass(frozen=True)
class Account:
    """The rounding error of one number of a step, Σ ⟨ḡ, δ⟩ over all operations."""

    of: str
    total: float
    inherited: float  # the part of it that came in with values that have no gradient of their own
    by_module: tuple[Share, ...]  # in the order of the step
    by_operation: tuple[Share, ...]
    plain: float  # |total| over the sum of all sizes: near 0 where contributions cancel
    unknown: int  # arithmetic calls of the forward pass that could not be done again: their part is missing
    engine: float | None = None  # the number as the engine had it
    exact: float | None = None  # the same in float64

    @property
    def measured(self) -> float | None:
        """What it is off by, the engine's number less that in float64."""
        return None if self.exact is None or self.engine is None else self.engine - self.exact

    @property
    def remainder(self) -> float | None:
        """What is measured and not accounted for: terms of second order, and what is said to be missing."""
        return None if self.measured is None else self.measured - self.total

    @property
    def cancels(self) -> bool:
        return self.plain < PLAIN

    def __str__(self) -> str:
        lines = [f"rounding moved {self.of} by {self.total:+.3g} to first order"]
        if self.inherited:
            lines[0] += f", {self.inherited:+.3g} of it by values without a gradient (tables, masks, constants)"
        if self.measured is not None:
            lines.append(f"measured against float64: {self.measured:+.3g}; remainder {self.remainder:+.3g}")
        if self.cancels:
            lines.append(f"contributions cancel: their sum is {100 * self.plain:.0f}% of their sizes")
        if self.unknown:
            lines.append(f"{self.unknown:,} calls were not done again: what they add is missing")
        for title, shares in (("by module", self.by_module), ("by operation", self.by_operation)):
            largest = sorted(shares, key=lambda one: -abs(one.error + one.inherited))[:SHOWN]
            lines += [f"{title}:"]
            lines += [
                f"  {one.error + one.inherited:+.3g}  {one.name or '(no module)'}, {one.calls} calls" for one in largest
            ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Part:
    """What one operation adds to the number, and where it stands."""

    module: str
    operation: str
    error: float  # ⟨ḡ, δ⟩
    inherited: float = 0.0


def account_of(
    of: str, parts: Sequence[Part], *, unknown: int = 0, engine: float | None = None, exact: float | None = None
) -> Account:
    """The account of a number, of what every operation adds to it."""
    values = [part.error + part.inherited for part in parts]
    size = sum(map(abs, values))
    return Account(
        of,
        sum(values),
        sum(part.inherited for part in parts),
        _grouped(parts, lambda part: part.module),
        _grouped(parts, lambda part: part.operation),
        abs(sum(values)) / size if size else 1.0,
        unknown,
        engine,
        exact,
    )


def _grouped(parts: Sequence[Part], key: Callable[[Part], str]) -> tuple[Share, ...]:
    groups: dict[str, list[Part]] = {}
    for part in parts:
        if part.error or part.inherited:
            groups.setdefault(key(part), []).append(part)
    return tuple(
        Share(name, len(own), sum(part.error for part in own), sum(part.inherited for part in own))
        for name, own in groups.items()
    )
