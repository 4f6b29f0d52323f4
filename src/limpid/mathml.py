"""Equations as MathML, which browsers draw and screen readers speak: the page needs no mathematics library."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache


@cache
def mathml(latex: str, display: str = "block") -> str:
    """One equation as MathML, a block of its own or "inline".

    Raises  ValueError for LaTeX that has no MathML
    """
    from latex2mathml.converter import convert

    made = convert(latex, display=display)
    raw = re.search(r"\\[A-Za-z]+", re.sub(r"<[^>]*>", " ", made))
    if raw is not None:
        raise ValueError(f"{latex}: {raw[0]} has no MathML; write it in other words")
    return made.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")


def equations(lines: Iterable[str]) -> dict[str, str]:
    """MathML by LaTeX, each once; empty lines have none."""
    return {line: mathml(line) for line in dict.fromkeys(lines) if line}
