"""What a model costs before it is trained: parameters, FLOPs, memory, time, money, and what it could reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpid.planning.flops import flops_per_token as flops_per_token
from limpid.planning.parameters import parameter_count as parameter_count
from limpid.planning.time import critical_batch as critical_batch
from limpid.planning.time import decode_step_seconds as decode_step_seconds

if TYPE_CHECKING:
    from limpid.planning.report import Plan as Plan


def __getattr__(name: str) -> Any:
    if name == "Plan":  # loaded on first use: training needs the counts only
        from limpid.planning.report import Plan

        return Plan
    raise AttributeError(f"limpid.planning has no name {name!r}")
