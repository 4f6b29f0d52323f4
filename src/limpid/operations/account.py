"""By how much rounding moved the loss, to first order, and which operations did it; beside what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpid.operations.call import Call, Check

if TYPE_CHECKING:
    from limpid.operations.report import Report

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


def account(report: Report, of: str, exact: float | None) -> Account:
    """The account of what the backward pass began at."""
    parts = [call.error + call.inherited_error for call in report.calls]
    size = sum(abs(part) for part in parts)
    forward = [call for call in report.calls if call.phase == "forward"]
    return Account(
        of,
        sum(parts),
        sum(call.inherited_error for call in report.calls),
        _grouped(report.calls, lambda call: call.module),
        _grouped(report.calls, lambda call: f"{call.operation} {call.dtype}"),
        abs(sum(parts)) / size if size else 1.0,
        sum(call.check is Check.UNCHECKED for call in forward),
        report.began,
        exact,
    )


def _grouped(calls: list[Call], key: Callable[[Call], str]) -> tuple[Share, ...]:
    groups: dict[str, list[Call]] = {}
    for call in calls:
        if call.error or call.inherited_error:
            groups.setdefault(key(call), []).append(call)
    return tuple(
        Share(name, len(own), sum(call.error for call in own), sum(call.inherited_error for call in own))
        for name, own in groups.items()
    )
