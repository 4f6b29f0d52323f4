"""A record as a table of numbers by step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from limpid.doctor.records.names import NAMES, STEPS, TRANSLATION


@dataclass
class Curves:
    """What a record says, as lists of (step, value)."""

    source: str
    kind: str
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)  # steps as they were written, to see restarts
    vocab: int | None = None
    max_steps: int | None = None
    max_grad_norm: float | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, step: int, entry: Iterable[tuple[str, Any]]) -> None:
        """One line of the record."""
        taken = False
        for name, value in entry:
            ours = TRANSLATION.get(clean(name))
            number = as_number(value)
            if ours is None or number is None:
                continue
            points = self.series.setdefault(ours, [])
            if not (points and points[-1][0] == step and taken and ours == "loss"):
                points.append((step, number))
            taken = taken or ours in ("loss", "learning_rate", "grad_norm")
        if taken and (not self.order or self.order[-1] != step):
            self.order.append(step)

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.series.get(name, [])]

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.series.get("loss", [])]


def fill(found: Curves, entries: Iterable[dict[str, Any]]) -> None:
    for number, entry in enumerate(entries, 1):
        step = next((as_number(entry[name]) for name in entry if clean(name) in STEPS), None)
        found.add(int(step) if step is not None and math.isfinite(step) else number, _preferred(entry))


def _preferred(entry: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Entries whose names we know, each of our names once: the first spelling in our order wins."""
    by_clean = {clean(name): value for name, value in entry.items()}
    for names in NAMES.values():
        for name in names:
            if name in by_clean and as_number(by_clean[name]) is not None:
                yield name, by_clean[name]
                break


def clean(name: str) -> str:
    return str(name).strip().lower()


def as_number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None or value == "":
        return None
    try:
        return float(str(value).replace(",", ""))
    except ValueError:
        return None
