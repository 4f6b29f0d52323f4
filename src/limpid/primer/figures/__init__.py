"""The pictures of the primer: each is drawn as SVG, and in characters for a terminal, from the same numbers."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from limpid.primer.figures.drawn import Drawn

ROOMS = [import_module(f"{__name__}.{room.name}") for room in pkgutil.iter_modules(__path__)]
FIGURES: dict[str, Drawn] = {name: drawn for room in ROOMS for name, drawn in getattr(room, "FIGURES", {}).items()}
"""Those of every file here that has some."""


def as_svg(name: str, settings: Mapping[str, Any]) -> str:
    """The picture, with a title that says what there is to see."""
    return FIGURES[name].svg(**settings)


def as_text(name: str, settings: Mapping[str, Any]) -> str:
    """The picture, or a table of what it shows, in at most 72 columns."""
    return FIGURES[name].text(**settings)
