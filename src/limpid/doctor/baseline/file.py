"""Runs that worked, in files: the first run writes one, and later runs are held against it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from limpid.doctor.baseline.run import Companion, Run
from limpid.doctor.baseline.step_sketch import StepSketch
from limpid.doctor.baseline.telling import Told
from limpid.doctor.baseline.trail import Line
from limpid.doctor.fact import Fact
from limpid.doctor.loop_facts import LoopFacts

LAST = 200
"""The last step whose facts are kept."""
WRITTEN = (1, 2, 3, 4, 6, 8, 10, 16, 25, 50, 100, 200)
"""Steps whose facts are kept, and at which a new file is written; and when the doctor is closed."""


class Baseline:
    """Runs that are kept in files; of files that do not exist this run writes the first."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises ConfigError for a file that is no baseline."""
        self.companions = [Companion(Run.read(path)) for path in paths if path.exists()]
        missing = [path for path in paths if not path.exists()]
        self.new = Run(missing[0]) if missing else None

    def take(self, number: int, first_step: int, sketch: StepSketch | None, line: Line) -> None:
        """One more step, before it is judged."""
        for companion in self.companions:
            companion.take(number, number == first_step, sketch, line)
        if self.new is not None:
            self.new.lines[number] = line
            if sketch is not None:
                self.new.sketches[number] = sketch
            if number in WRITTEN:
                self.new.write()

    @property
    def is_alike(self) -> bool:
        """Whether this run does, number for number, what one of those did."""
        return any(companion.state == "alike" for companion in self.companions)

    @property
    def random_elsewhere(self) -> bool:
        """Whether it was the same until random numbers were drawn that were not drawn then, or the other way round."""
        return any(companion.random_elsewhere for companion in self.companions)

    @property
    def told(self) -> Told | None:
        """What is different in the last step, though all before it was the same."""
        if any(companion.state == "alike" and companion.told is None for companion in self.companions):
            return None
        found = [companion.told for companion in self.companions if companion.told is not None]
        return next((told for told in found if not told.certain), found[0] if found else None)

    def unlike(self, facts: LoopFacts) -> dict[str, list[tuple[Fact | None, Fact | None]]]:
        """What is not as it was at this step, by part; a new baseline takes the facts."""
        if self.new is not None and facts.step <= LAST:
            self.new.facts[facts.step] = facts
            if facts.step in WRITTEN:
                self.new.write()
        for companion in self.companions:
            then = companion.run.facts.get(facts.step)
            if then is not None:
                return facts.unlike(then, self._seen)
        return {}

    @cached_property
    def _seen(self) -> dict[tuple[str, str], list[Fact]]:
        """What each fact was at all steps that are kept of all runs."""
        found: dict[tuple[str, str], list[Fact]] = {}
        for companion in self.companions:
            for held in companion.run.facts.values():
                for fact in held.facts:
                    found.setdefault((fact.part, fact.name), []).append(fact)
        return found

    def close(self) -> None:
        """Write what is not written yet."""
        if self.new is not None and self.new.lines:
            self.new.write()
