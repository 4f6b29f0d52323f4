"""A picture in its two forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Drawn(NamedTuple):
    """As SVG and in characters; both take the settings that a chapter gives."""

    svg: Callable[..., str]
    text: Callable[..., str]
