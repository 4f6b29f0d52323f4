"""One trial: a fault at a moment, the training resumed as a user would, and what came of it."""

import os
import random
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from benchmarks.endurance import process
from benchmarks.endurance.faults import Fault, Place
from benchmarks.endurance.process import Ended, Moment
from benchmarks.endurance.subject import Subject

from limpid.training.heartbeat import Phase

TORCHRUN = re.compile(r"[IWE]\d{4} ")
PLACE = re.compile(rf"(step \d+, )?({'|'.join(get_args(Phase))})\b")
ATTEMPTS = 6
"""How often a user tries."""
TAKEN_BY_SIGNAL = (0, 130)


@dataclass(frozen=True)
class Trial:
    """What is done to whom, and when."""

    number: int
    fault: Fault
    subject: Subject
    moment: Moment
    resumed: bool
    """Whether it is done to a training that was resumed, half-way."""

    @property
    def name(self) -> str:
        """What is printed of it."""
        return f"{self.number:3d} {self.fault.name}, {self.subject.name}"


@dataclass
class Outcome:
    """What came of it."""

    trial: Trial
    at: str
    """Where it was when the fault struck."""
    problems: list[str] = field(default_factory=list)
    """Each begins with its kind: lost, different, unreadable, traceback, hung, unclear, unnamed."""
    retaken: int = 0
    """Steps that were taken and had to be taken again."""
    said: list[str] = field(default_factory=list)

    @property
    def kinds(self) -> set[str]:
        return {problem.partition(":")[0] for problem in self.problems}


@dataclass
class Prepared:
    """A subject with what its trials need: the training that was not disturbed, and one that stopped half-way."""

    subject: Subject
    whole: Path
    half: Path
    events: dict[bool, Mapping[int, int]]
    """File events of each process of a training, new (False) or resumed (True)."""
    seconds: dict[bool, float]

    @property
    def limit(self) -> float:
        """Seconds after which a training counts as hung."""
        return 60 + 5 * max(self.seconds.values())


def attempt(trial: Trial, prepared: Prepared, work: Path) -> Outcome:
    """Lay it out in a new folder, do the fault, resume, compare, clear away."""
    folder = Path(tempfile.mkdtemp(prefix="trial-", dir=work))
    try:
        shutil.copytree(prepared.half if trial.resumed else prepared.whole.parent / "laid", folder, dirs_exist_ok=True)
        return _attempt(trial, prepared, folder)
    finally:
        for where, folders, _ in os.walk(folder):
            for name in folders:
                os.chmod(os.path.join(where, name), 0o755)
        shutil.rmtree(folder, ignore_errors=True)


def _attempt(trial: Trial, prepared: Prepared, folder: Path) -> Outcome:
    subject, fault = trial.subject, trial.fault
    rng = random.Random(f"{trial.number} {trial.moment}")
    os.environ["LIMPID_CACHE"] = str(folder / "cache")
    place = Place(folder, rng, lambda: subject.checkpoint(folder), lambda: subject.logs(folder))

    def outside(group: int, pid: int) -> None:
        place.group, place.pid = group, pid
        fault.act(place)

    inside = (lambda: fault.inside(rng)) if fault.inside is not None else process.nothing
    begin = subject.again(folder, Ended(0, "", 0)) if trial.resumed else subject.begin()
    assert begin is not None
    first = process.run(begin, folder, trial.moment, outside, inside, prepared.limit)
    outcome = Outcome(trial, first.struck or "after its end")
    _judge_end(outcome, first, "disturbed")
    if fault.names and subject.processes > 1 and first.struck and first.code != 0:
        _judge_name(outcome, first)
    taken, stands = subject.steps(folder)
    outcome.retaken = max(0, taken - stands)
    if fault.keeps_all and first.code == 130 and outcome.retaken and subject.one_line_errors:
        outcome.problems.append(f"lost: {outcome.retaken} steps, though it could save")
    if fault.goes_on and first.code != 0 and not first.hung:
        outcome.problems.append(f"lost: it ended with {first.code}: {first.line}")
    fault.damage(place)
    fault.mend(place)
    _go_on(outcome, prepared, folder, first)
    return outcome


def _go_on(outcome: Outcome, prepared: Prepared, folder: Path, ended: Ended) -> None:
    """Resume until it is done, and compare."""
    subject = outcome.trial.subject
    for _ in range(ATTEMPTS):
        again = subject.again(folder, ended)
        if again is None:
            break
        refused, ended = ended, process.run(again, folder, limit=prepared.limit)
        _judge_end(outcome, ended, "resumed")
        if ended.code == 0:
            break
        if ended.hung or ended.said == refused.said:
            break
    if ended.code != 0:
        outcome.problems.append(f"lost: it cannot be resumed: {ended.line}")
        return
    for difference in subject.differences(folder, prepared.whole):
        kind = "lost" if difference.what == "missing" else difference.what
        outcome.problems.append(f"{kind}: {difference.where}")


def _traceback(said: str) -> bool:
    """Whether a process ended in one; torchrun's agent logs its own about each that it lost."""
    return any("Traceback (most" in line for line in said.splitlines() if not TORCHRUN.match(line))


def _judge_name(outcome: Outcome, ended: Ended) -> None:
    """Whether one line names the process that was disturbed and where it stood; a cut connection has two ends."""
    errors = {line for line in ended.said.splitlines() if line.startswith("limpid: error:")}
    fault, rank = outcome.trial.fault, outcome.trial.moment.rank
    named = re.compile(r"\branks? \d" if fault.inside else rf"\brank {rank}\b")
    if len(errors) != 1 or not all(named.search(line) and PLACE.search(line) for line in errors):
        outcome.problems.append(f"unnamed: rank {rank}: {' | '.join(sorted(errors)) or ended.line[:200]}")


def _judge_end(outcome: Outcome, ended: Ended, which: str) -> None:
    """What is wrong with how a process ended, apart from what it left."""
    subject = outcome.trial.subject
    outcome.said.append(f"[{ended.code}] {ended.said[-4000:]}")
    if ended.hung:
        outcome.problems.append(f"hung: {which}, {ended.seconds:.0f} s, after: {ended.line}")
    elif subject.one_line_errors and (_traceback(ended.said) or ended.code == process.TRACEBACK):
        outcome.problems.append(f"traceback: {which}: {ended.line[:200]}")
    elif ended.code == 2 and subject.one_line_errors:
        errors = [line for line in ended.said.splitlines() if line.startswith("limpid: error:")]
        if len({*errors}) != 1:
            outcome.problems.append(f"unclear: {which}: {len(errors)} lines of error: {ended.line[:200]}")
    elif ended.code not in (*TAKEN_BY_SIGNAL, 1) and ended.code > 0 and subject.one_line_errors:
        outcome.problems.append(f"unclear: {which}: exit code {ended.code}: {ended.line[:200]}")
