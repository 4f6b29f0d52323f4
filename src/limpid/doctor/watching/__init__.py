"""What is looked at while a run trains: events, then data, weights, the loss's formula, and curves last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpid.doctor.watching import curves, events, formula, rows, weights

WATCHES: list[Callable[..., Any]] = [*events.WATCH, *rows.WATCH, *formula.WATCH, *weights.WATCH, *curves.WATCH]
"""(what is watched, record of the step, past) → findings, in this order at every step."""
