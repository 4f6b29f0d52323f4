"""The catalogue: every operation, formula and update rule enters it by stating its equation."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from limpid.config.arguments import checked

ENTRIES: dict[str, Any] = {}
"""What has stated an equation so far, by name: classes of operations and of update rules, and formulas."""


def register(name: str, entry: Any) -> None:
    """Add what states an equation."""
    ENTRIES[name] = entry


@checked
def catalogue(kind: type | None = None) -> tuple[Any, ...]:
    """Everything that states an equation, by name; or what is of one kind: Operation, Formula or UpdateRule."""
    for room in ("limpid.maths", "limpid.maths.alignment", "limpid.maths.foundations"):
        import_module(room)
    entries = (ENTRIES[name] for name in sorted(ENTRIES))
    return tuple(entry for entry in entries if kind is None or _is(entry, kind))


def _is(entry: Any, kind: type) -> bool:
    return issubclass(entry, kind) if inspect.isclass(entry) else isinstance(entry, kind)
