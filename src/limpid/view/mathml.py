"""Equations as MathML, which browsers draw and screen readers speak: the page needs no mathematics library."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from limpid.tracing.document import EntryDocument, StepDocument


@cache
def mathml(latex: str) -> str:
    """One equation as a block of MathML.

    Raises  ValueError for LaTeX that has no MathML
    """
    from latex2mathml.converter import convert

    made = convert(latex, display="block")
    raw = re.search(r"\\[A-Za-z]+", re.sub(r"<[^>]*>", " ", made))
    if raw is not None:
        raise ValueError(f"{latex}: {raw[0]} has no MathML; write it in other words")
    return made.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")


def equations(lines: Iterable[str]) -> dict[str, str]:
    """MathML by LaTeX, each once; empty lines have none."""
    return {line: mathml(line) for line in dict.fromkeys(lines) if line}


def of_step(step: StepDocument) -> dict[str, str]:
    """Every equation that a step's document holds."""
    made = [line for one in step.quantities for line in (one.equation, *one.adjoint)]
    rules = [line for rule in step.update.rules for line in rule.equations]
    return equations([*made, step.loss.formula, *rules])


def of_entry(entry: EntryDocument) -> dict[str, str]:
    """Every equation that an entry's document holds."""
    return equations(one.equation for one in (entry.made, *entry.passed) if one is not None)
