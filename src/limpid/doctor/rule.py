"""What a rule is: a fault it detects, the equation that proves it, the threshold and where that comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Need = Literal["model", "optimizer", "schedule", "scaler", "batch", "loss", "steps", "curves", "ranks", "break"]
"""What a rule must be given before it can judge."""


@dataclass(frozen=True)
class Rule:
    """One fault the doctor knows. It is detected where the family's checks say so."""

    slug: str
    family: str
    detects: str  # one sentence
    equation: str  # LaTeX or a plain relation
    source: str  # paper and equation, or "definition"
    threshold: str  # the number, and its derivation
    cost: str  # what checking takes
    needs: tuple[Need, ...]
    explains: tuple[str, ...] = ()  # rules whose findings are consequences of this one
