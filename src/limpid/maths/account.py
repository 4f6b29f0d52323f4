"""By how much rounding moved the loss, to first order, and which operations did it; beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

PLAIN = 0.2
"""Contributions cancel where their sum is less than this share of the sum of their sizes."""
SHOWN = 8
MOST = 3


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
    beyond: float = 0.0  # the first order, where that is known: curvature, kinks, what was chosen otherwise
    bent: tuple[Share, ...] = ()  # who does that, by operation and module

    @property
    def measured(self) -> float | None:
        """What it is off by, the engine's number less that in float64."""
        return None if self.exact is None or self.engine is None else self.engine - self.exact

    @property
    def remainder(self) -> float | None:
        """What is measured and not accounted for: beyond the first order where that is not known, or missing."""
        return None if self.measured is None else self.measured - self.total - self.beyond

    @property
    def cancels(self) -> bool:
        return self.plain < PLAIN

    def __str__(self) -> str:
        lines = [f"rounding moved {self.of} by {self.total:+.3g} to first order"]
        if self.inherited:
            lines[0] += f", {self.inherited:+.3g} of it by values without a gradient (tables, masks, constants)"
        if self.beyond:
            lines.append(f"beyond first order: {self.beyond:+.3g}, by curvature, kinks and choices, most of it at")
            lines += [f"  {one.error:+.3g}  {one.name}, {one.calls} calls" for one in _largest(self.bent)[:MOST]]
        if self.measured is not None:
            lines.append(f"measured against float64: {self.measured:+.3g}; remainder {self.remainder:+.3g}")
        if self.cancels:
            lines.append(f"contributions cancel: their sum is {100 * self.plain:.0f}% of their sizes")
        if self.unknown:
            lines.append(f"{self.unknown:,} calls were not done again: what they add is missing")
        for title, shares in (("by module", self.by_module), ("by operation", self.by_operation)):
            largest = _largest(shares)[:SHOWN]
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
    beyond: float = 0.0  # the first order


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
        sum(part.beyond for part in parts),
        _bent(parts),
    )


def _bent(parts: Sequence[Part]) -> tuple[Share, ...]:
    """What is beyond the first order, by operation and module."""
    bent = [Part(f"{part.operation} in {part.module or '(no module)'}", "", part.beyond) for part in parts]
    return _grouped(bent, lambda part: part.module)


def _largest(shares: Sequence[Share]) -> list[Share]:
    return sorted(shares, key=lambda one: -abs(one.error + one.inherited))


def _grouped(parts: Sequence[Part], key: Callable[[Part], str]) -> tuple[Share, ...]:
    groups: dict[str, list[Part]] = {}
    for part in parts:
        if part.error or part.inherited:
            groups.setdefault(key(part), []).append(part)
    return tuple(
        Share(name, len(own), sum(part.error for part in own), sum(part.inherited for part in own))
        for name, own in groups.items()
    )
