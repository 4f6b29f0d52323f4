"""The pictures of the primer: each is drawn as SVG, and in characters for a terminal, from the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from limpid.primer.figures import vectors


class Drawn(NamedTuple):
    """One picture in its two forms; both take the settings that a chapter gives it."""

    svg: Callable[..., str]
    text: Callable[..., str]


FIGURES = {"points": Drawn(vectors.points_svg, vectors.points_text)}


def as_svg(name: str, settings: Mapping[str, Any]) -> str:
    """The picture, with a title that says what there is to see."""
    return FIGURES[name].svg(**settings)


def as_text(name: str, settings: Mapping[str, Any]) -> str:
    """The picture, or a table of what it shows, in at most 80 columns."""
    return FIGURES[name].text(**settings)
