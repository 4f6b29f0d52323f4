"""A run that worked, as its file keeps it: facts, sketches and lines by step; how long another goes along with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from limpid.doctor.baseline import tolerance
from limpid.doctor.baseline.comparison import Comparison
from limpid.doctor.baseline.step_sketch import StepSketch
from limpid.doctor.baseline.telling import Told, told
from limpid.doctor.baseline.trail import Line, Parting
from limpid.doctor.fact import Fact
from limpid.doctor.loop_facts import LoopFacts
from limpid.errors import ConfigError
from limpid.files import MALFORMED, parse_json, read_whole, write_atomically

MODULES = 100
"""Depth that a line of a step, which knows no modules, allows rounding for."""


@dataclass
class Run:
    """What was kept of a run."""

    path: Path
    facts: dict[int, LoopFacts] = field(default_factory=dict)
    sketches: dict[int, StepSketch] = field(default_factory=dict)
    lines: dict[int, Line] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Run:
        """Raises ConfigError for a file that is none."""
        try:
            held = parse_json(read_whole(path))
            return cls(
                path,
                {int(n): LoopFacts(int(n), tuple(Fact(**fact) for fact in f)) for n, f in held["steps"].items()},
                {int(n): StepSketch.unpacked(one) for n, one in held.get("sketches", {}).items()},
                {int(n): Line.unpacked(one) for n, one in held.get("lines", {}).items()},
            )
        except (*MALFORMED, OSError) as error:
            raise ConfigError(
                f"{path} holds no facts of a loop: name another file, which the next run writes"
            ) from error

    def write(self) -> None:
        held = {
            "steps": {step: [asdict(fact) for fact in one.facts] for step, one in self.facts.items()},
            "sketches": {step: one.packed(step == min(self.sketches)) for step, one in self.sketches.items()},
            "lines": {step: one.packed() for step, one in self.lines.items()},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, (json.dumps(held, separators=(",", ":"), default=_plain) + "\n").encode())


class Companion:
    """Goes along a run step by step, until it parts from it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.state: Literal["alike", "apart", "another"] = "alike" if run.sketches else "another"
        self.told: Told | None = None  # of the step at which they part
        self.random_elsewhere = False  # whether they parted because random numbers were used otherwise
        self._parting: Parting | None = None

    def take(self, number: int, first: bool, sketch: StepSketch | None, line: Line) -> None:
        """One more step; what it says stands in `state` and `told`."""
        self.told = None
        if self.state != "alike":
            return
        then = self.run.sketches.get(number)
        if sketch is not None and then is not None:
            self._compare(Comparison(then, sketch, first))
        before = self.run.lines.get(number)
        if self.state == "alike" and before is not None:
            self._go_on(before, line, sketch is not None)

    def _compare(self, comparison: Comparison) -> None:
        if self._parting is None:
            near = tolerance.gradient(comparison.eps, comparison.terms, MODULES)
            self._parting = Parting(near)
        match comparison.verdict:
            case "alike":
                return
            case "without effect":
                self.told = told(comparison)
            case "apart":
                self.state, self.told = "apart", told(comparison)
            case "other random numbers":
                self.state, self.random_elsewhere = "another", True
            case _:
                self.state = "another"

    def _go_on(self, then: Line, now: Line, sketched: bool) -> None:
        assert self._parting is not None
        parted = self._parting.first(then, now)
        if parted is None or (sketched and parted[0] != "update"):  # sketches say it better, or say that it is rounding
            return
        part, says = parted
        if part == "random":
            self.state, self.random_elsewhere = "another", True
            return
        self.state = "apart"
        says = f"up to here all was as it was; {says}." if not sketched else f"{says}."
        self.told = Told(part, part, says, "a change of what happens at this step", True, {"part": part})


def _plain(value: Any) -> Any:
    """NumPy's numbers and others as JSON has them."""
    return value.item() if hasattr(value, "item") else str(value)
