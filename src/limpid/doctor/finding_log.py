"""Where findings are kept and told: the console, findings.jsonl, TensorBoard or W&B."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from limpid.doctor.finding import SEVERITIES, Finding
from limpid.doctor.ranking import ranked


class FindingLog:
    """Everything found so far; each rule speaks once, and again when it becomes more severe."""

    def __init__(self, output: Path | None, say: Callable[[str], None] | bool, writer: Any) -> None:
        self.output, self.say, self.writer = output, say, writer
        self.first = True  # whether this process speaks for all of them
        self.found: dict[str, Finding] = {}

    def add(self, found: Iterable[Finding]) -> None:
        for finding in found:
            old = self.found.get(finding.rule)
            if old is None or SEVERITIES.index(old.severity) < SEVERITIES.index(finding.severity):
                self.found[finding.rule] = finding
                if self.first:
                    self._tell(finding)

    def findings(self, without: Iterable[str] = ()) -> list[Finding]:
        """Root causes first; without those of some rules."""
        return ranked([finding for rule, finding in self.found.items() if rule not in without])

    def _tell(self, finding: Finding) -> None:
        if self.output is not None:
            self.output.mkdir(parents=True, exist_ok=True)
            with (self.output / "findings.jsonl").open("a", encoding="utf-8") as file:
                file.write(finding.as_json() + "\n")
        if hasattr(self.writer, "add_text"):  # TensorBoard
            self.writer.add_text(f"doctor/{finding.rule}", finding.says, finding.step or 0)
        elif hasattr(self.writer, "log"):  # W&B
            self.writer.log({f"doctor/{finding.rule}": SEVERITIES.index(finding.severity) + 1})
        if finding.severity != "notice":
            self._say(spoken(finding))

    def skipped(self, what: str, why: str) -> None:
        """Say what could not be done."""
        if self.first:
            self._say(f"doctor: not checked: {what}: {why}")

    def _say(self, line: str) -> None:
        if callable(self.say):
            self.say(line)
        elif self.say:
            print(line, file=sys.stderr)


def spoken(finding: Finding) -> str:
    """A finding on the console: what, why, what to do."""
    when = "before the first step" if finding.step is None else f"step {finding.step}"
    return (
        f"doctor: {finding.severity}: {finding.rule} ({when}, {finding.where}): {finding.says}\n"
        f"        cause: {finding.cause}\n        fix:   {finding.fix}"
    )
