"""The doctor: watches any PyTorch training loop, and names the cause when something is wrong.

Findings, rules and records need no torch; watching does, and loads it on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Rule
from limpid.doctor.rules import RULES

if TYPE_CHECKING:
    from limpid.doctor.doctor import Doctor as Doctor
    from limpid.doctor.doctor import Doctor as watch

__all__ = ["RULES", "Doctor", "Finding", "Rule", "watch"]


def __getattr__(name: str) -> Any:
    if name in ("Doctor", "watch"):
        return import_module("limpid.doctor.doctor").Doctor
    raise AttributeError(f"limpid.doctor has no {name!r}; there are {', '.join(__all__)}")
