"""A claim one meets, and what holds instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Numbers = list[tuple[str, str]]


@dataclass(frozen=True)
class Erratum:
    """A claim one meets, what holds instead, and numbers that tell them apart."""

    name: str
    claim: str
    instead: str
    numbers: Callable[[], Numbers]
