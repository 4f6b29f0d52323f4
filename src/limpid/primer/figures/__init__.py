"""The pictures of the primer: each is drawn as SVG, and in characters for a terminal, from the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limpid.primer.figures import attention, information, similarity, vectors
from limpid.primer.figures.drawn import Drawn

FIGURES: dict[str, Drawn] = {**vectors.FIGURES, **similarity.FIGURES, **information.FIGURES, **attention.FIGURES}


def as_svg(name: str, settings: Mapping[str, Any]) -> str:
    """The picture, with a title that says what there is to see."""
    return FIGURES[name].svg(**settings)


def as_text(name: str, settings: Mapping[str, Any]) -> str:
    """The picture, or a table of what it shows, in at most 72 columns."""
    return FIGURES[name].text(**settings)
