"""What the doctor says: one finding, its evidence, and the number that would refute it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["notice", "warning", "fault"]
SEVERITIES: tuple[Severity, ...] = ("notice", "warning", "fault")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, or odd enough to know."""

    rule: str  # slug, a key of RULES
    severity: Severity
    step: int | None = None  # 1 is the first update; None before the first step
    where: str  # tensor, module, group or row
    says: str  # what, in one or two sentences with the numbers
    cause: str  # why
    fix: str  # what to change
    sure: float = 1.0  # 0 … 1; 1 is an exact test, without a threshold
    refuted_by: str  # the number that would show this finding wrong
    evidence: dict[str, Any] = field(default_factory=dict)  # plain numbers, words and lists of them

    def as_json(self) -> str:
        """One line of JSON; numbers that are not finite become words."""
        return json.dumps(_plain(asdict(self)), ensure_ascii=False)


def finding_from(entry: dict[str, Any]) -> Finding:
    """The finding that a line of findings.jsonl holds."""
    return Finding(**{key: entry[key] for key in Finding.__dataclass_fields__ if key in entry})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
