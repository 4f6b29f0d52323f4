"""What a notebook's kernel holds."""

from __future__ import annotations

from dataclasses import dataclass

from limpid.doctor.finding import Finding
from limpid.view.documents.compare import ComparedDocument
from limpid.view.documents.plan import PlanDocument


@dataclass(frozen=True)
class GivenDocument:
    """One result that a notebook's kernel holds: which it is, the others are null."""

    plan: PlanDocument | None = None
    finding: Finding | None = None
    comparison: ComparedDocument | None = None
