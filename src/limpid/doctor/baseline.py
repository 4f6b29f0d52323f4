"""The facts of a loop that worked, in a file: written by the first run, and what later runs are held against."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from limpid.doctor.loop_facts import Fact, LoopFacts
from limpid.errors import ConfigError
from limpid.files import MALFORMED, parse_json, read_whole, write_atomically

LAST = 200
"""The last step whose facts are kept."""


class Baseline:
    """Facts by step, and the file that holds them."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a file that is no baseline."""
        self.path = path
        self.is_new = not path.exists()
        self.steps: dict[int, LoopFacts] = {} if self.is_new else _read(path)

    def unlike(self, facts: LoopFacts) -> dict[str, list[tuple[Fact | None, Fact | None]]]:
        """What is not as it was at this step, by part; a new baseline takes the facts, and nothing differs."""
        if not self.is_new:
            then = self.steps.get(facts.step)
            return {} if then is None else facts.unlike(then)
        if facts.step <= LAST:
            self.steps[facts.step] = facts
            held = {step: [asdict(fact) for fact in one.facts] for step, one in self.steps.items()}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, (json.dumps({"steps": held}, indent=1) + "\n").encode())
        return {}


def _read(path: Path) -> dict[int, LoopFacts]:
    try:
        steps = parse_json(read_whole(path))["steps"]
        return {int(step): LoopFacts(int(step), tuple(Fact(**fact) for fact in held)) for step, held in steps.items()}
    except (*MALFORMED, OSError) as error:
        raise ConfigError(f"{path} holds no facts of a loop: name another file, which the next run writes") from error
