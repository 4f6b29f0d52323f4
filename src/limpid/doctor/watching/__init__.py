"""What is looked at while a run trains: events and schedule, data, weights, the loss's formula, and curves last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpid.doctor.watching import curves, events, formula, rows, schedule, weights

WATCHES: list[Callable[..., Any]] = [
    watch for family in (events, schedule, rows, formula, weights, curves) for watch in family.WATCH
]
"""(what is watched, record of the step, past) → findings, in this order at every step."""
