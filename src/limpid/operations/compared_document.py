"""Two recordings beside each other, as plain values: for JSON, terminal and notebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VERSION = 1
Verdict = Literal["equal", "rounding", "beyond rounding", "another computation", "another start"]
Kind = Literal["parameter", "input", "draw", "argument", "call", "result", "module", "gradient"]


@dataclass(frozen=True)
class Place:
    """Where two recordings differ by more than rounding, or are no recordings of the same thing."""

    kind: Kind
    name: str  # a parameter, input or module; else the operation
    module: str
    phase: str
    source: str
    side: str  # whose call is wrong: a, b or both; else nothing
    said: str  # in words


@dataclass(frozen=True)
class ModuleApart:
    """How far what a module gives is apart on both sides, and its gradient."""

    module: str
    output: float | None
    gradient: float | None


@dataclass(frozen=True)
class OneSided:
    """Calls that stand on one side alone."""

    side: str
    module: str
    operation: str
    calls: int


@dataclass(frozen=True)
class ComparedRecordings:
    """Two recordings beside each other."""

    version: int
    a: str
    b: str
    verdict: Verdict
    places: tuple[Place, ...]  # in the order of the step
    begins: str  # the first result that differs at all, in words
    calls_a: int
    calls_b: int
    aligned: int
    equal: int  # aligned calls whose results are the same to the bit
    formats: tuple[tuple[str, str, int], ...]  # of results that differ in it: here, there, how many
    one_sided: tuple[OneSided, ...]
    modules: tuple[ModuleApart, ...]
