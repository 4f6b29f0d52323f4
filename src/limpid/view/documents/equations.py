"""The catalogue of equations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EquationDocument:
    """One equation of the catalogue."""

    name: str
    kind: str
    purpose: str
    signature: str
    equation: str  # LaTeX
    adjoint: tuple[str, ...]  # LaTeX, a line per input
    branch: str
    stages: tuple[str, ...]
    source: str
    file: str
    line: int


@dataclass(frozen=True)
class EquationsView:
    """The whole catalogue, with MathML of every line."""

    equations: tuple[EquationDocument, ...]
    mathml: dict[str, str]
