"""What a model costs before it is trained: parameters, FLOPs, memory, time, money, and what it could reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpid.plan.flops import flops_per_token as flops_per_token
from limpid.plan.parameters import parameter_count as parameter_count
from limpid.plan.time import critical_batch as critical_batch
from limpid.plan.time import decode_step_seconds as decode_step_seconds

if TYPE_CHECKING:
    from limpid.plan.report import Plan as Plan
    from limpid.plan.report import plan as plan

LATER = ("Plan", "plan")
"""Names whose module is loaded on first use: training needs the counts only."""


def __getattr__(name: str) -> Any:
    if name in LATER:
        from limpid.plan import report

        return getattr(report, name)
    raise AttributeError(f"limpid.plan has no name {name!r}")
