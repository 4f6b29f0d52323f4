"""Findings while a run trains: root causes first, each rule once, to the console, a file, TensorBoard or W&B."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from limpid.doctor.finding import NOT_EXAMINED, OWN_PASSES, SEVERITIES, Finding, not_examined
from limpid.doctor.rule import Probe
from limpid.doctor.rules import RULES
from limpid.errors import CheckpointError
from limpid.files import LineFile, explained
from limpid.terminal import say

COMPARED = "baseline"
"""The family of rules whose notices are said: who holds a run against another asks for what is not as it was."""


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Root causes first: findings that no other one explains, then the rest; each by severity, certainty and time."""
    explained = {id(finding) for finding in findings if _explained(finding, findings)}
    return sorted(
        findings,
        key=lambda f: (
            f.severity == "notice",
            not f.is_said,
            id(f) in explained,
            -SEVERITIES.index(f.severity),
            -len(RULES[f.rule].explains) if f.rule in RULES else 0,
            -f.sure,
            f.step or 0,
        ),
    )


def as_choices(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of what may be meant are notices, unless the run suffers or they are what another alarm comes of."""
    found = list(findings)
    if any(map(shows_suffering, found)):
        return found
    alarms = [one for one in found if one.severity != "notice" and not one.meant]
    return [one if any(explains(one, alarm) for alarm in alarms) else as_choice(one) for one in found]


def as_choice(finding: Finding) -> Finding:
    """A finding as it stands in a run that does not suffer: what may be meant is a notice."""
    return dataclasses.replace(finding, severity="notice") if finding.meant else finding


def shows_suffering(finding: Finding) -> bool:
    """Whether a run in which this was found suffers, whatever its author meant."""
    return finding.severity != "notice" and not finding.meant and finding.rule in RULES and RULES[finding.rule].suffers


def _about(finding: Finding) -> str:
    """The rule, and of what was said of a loop which of it: a rule speaks once of one thing."""
    return f"{finding.rule} {finding.evidence.get('key', '')}".rstrip()


def _weight(finding: Finding) -> tuple[int, bool]:
    """How severe, and among notices whether it is said."""
    return SEVERITIES.index(finding.severity), finding.is_said


def explains(first: Finding, second: Finding) -> bool:
    """Whether `second` is a consequence of `first`: its rule is one, and it did not come earlier."""
    if first is second or first.severity == "notice" or first.rule not in RULES:
        return False
    return second.rule in RULES[first.rule].explains and (first.step or 0) <= (second.step or 0) + 30


def _explained(finding: Finding, findings: Sequence[Finding]) -> bool:
    return any(
        explains(other, finding) and not (explains(finding, other) and (finding.step or 0) < (other.step or 0))
        for other in findings
    )


class FindingLog:
    """Everything found so far; each rule speaks once, and again when it becomes more severe.

    What is found goes to the console, to findings.jsonl, to TensorBoard or W&B. What may be meant is a notice until the
    run suffers (a loss that diverges, stays where it began, or is not finite), or until there is an alarm that it
    explains.
    """

    def __init__(self, output: Path | None, say: Callable[[str], None] | bool, writer: Any) -> None:
        self.output, self.say, self.writer = output, say, writer
        self.first = True  # whether this process speaks for all of them
        self.by_rule: dict[str, Finding] = {}
        self.suffers = False
        self.choices: dict[str, Finding] = {}  # what may be meant, as severe as it is in a run that suffers
        self.compared: dict[str, Finding] = {}  # notices of a comparison that are not said yet, by part of a step
        if output is not None:
            with self._never_breaking():
                output.mkdir(parents=True, exist_ok=True)  # once: a run whose folder is deleted gets no other

    def add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if finding.severity == "notice" and finding.rule in RULES and RULES[finding.rule].family == COMPARED:
                self.compared.setdefault(str(finding.evidence.get("part")), finding)
            self._keep(self._as_choice(finding))
            self.suffers = self.suffers or shows_suffering(finding)
            alarms = [one for one in self.by_rule.values() if one.severity != "notice"]
            for choice in self.choices.values():
                if self.suffers or any(explains(choice, alarm) for alarm in alarms):
                    self._keep(choice)

    def _as_choice(self, finding: Finding) -> Finding:
        """What may be meant is kept for the time when the run suffers."""
        if not finding.meant or self.suffers:
            return finding
        old = self.choices.get(_about(finding))
        if old is None or SEVERITIES.index(old.severity) < SEVERITIES.index(finding.severity):
            self.choices[_about(finding)] = finding
        return as_choice(finding)

    def _keep(self, finding: Finding) -> None:
        old = self.by_rule.get(_about(finding))
        if old is None or _weight(old) < _weight(finding):
            self.by_rule[_about(finding)] = finding
            if self.first:
                self._report(finding)

    def findings(self, without: Iterable[str] = ()) -> list[Finding]:
        """Root causes first; without those of some rules."""
        return ranked([finding for rule, finding in self.by_rule.items() if rule not in without])

    def compared_to_the_end(self) -> None:
        """Say what is not as it was in a run that worked, though it is no warning; at the end of the comparison."""
        for finding in self.compared.values() if self.first else ():
            self._say(_line(finding))
        self.compared = {}

    def writes_baseline(self, path: Path) -> None:
        """Say that a run is compared with nothing: it is the one that later runs are held against."""
        if self.first:
            self._say(f"doctor: there is no baseline at {path}: this run writes it, later ones are held against it")

    def skipped(self, what: str, why: str) -> None:
        """Say what could not be examined, and keep it for whoever reads of the run later."""
        if what == OWN_PASSES:
            need = [rule.slug for rule in RULES.values() if Probe.FORWARD in rule.needs]
            what = f"{what}, which {len(need)} rules need, {need[0]} and {need[1]} among them"
        if not self.first:
            return
        if self.output is not None:
            with self._never_breaking(), contextlib.closing(LineFile(self.output / NOT_EXAMINED)) as file:
                file.write(json.dumps({"what": what, "why": why}, ensure_ascii=False))
        for line in not_examined({what: why}):
            self._say(f"doctor: {line}")

    def _report(self, finding: Finding) -> None:
        if self.output is not None:
            with self._never_breaking(), contextlib.closing(LineFile(self.output / "findings.jsonl")) as file:
                file.write(finding.as_json())
        if hasattr(self.writer, "add_text"):  # TensorBoard
            self.writer.add_text(f"doctor/{finding.rule}", finding.says, finding.step or 0)
        elif hasattr(self.writer, "log"):  # W&B
            self.writer.log({f"doctor/{finding.rule}": SEVERITIES.index(finding.severity) + 1})
        if finding.severity != "notice":
            self._say(f"{_line(finding)}\n        cause: {finding.cause}\n        fix:   {finding.fix}")
        elif finding.is_said:
            self._say(f"{_line(finding)}\n        meant: {finding.meant}\n        else:  {finding.fix}")

    @contextlib.contextmanager
    def _never_breaking(self) -> Iterator[None]:
        """A finding that cannot be written is said, and breaks no training."""
        try:
            with explained(f"cannot write to {self.output}"):
                yield
        except CheckpointError as error:
            self._say(f"doctor: {error}")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a console that is gone breaks no training either
            if callable(self.say):
                self.say(line)
            elif self.say:
                say(line, file=sys.stderr)


def _line(finding: Finding) -> str:
    return f"doctor: {finding.severity}: {finding.rule} ({when(finding)}, {finding.where}): {finding.says}"


def when(finding: Finding) -> str:
    return "before the first step" if finding.step is None else f"step {finding.step}"
