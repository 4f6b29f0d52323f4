"""One run with the doctor beside it: what it says, when, and whether that is right."""

from __future__ import annotations

import time
import traceback
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.doctor.fault import Fault
from benchmarks.doctor.healthy import Healthy
from benchmarks.doctor.loop import Loop, count_labels
from benchmarks.doctor.ranks import on_ranks
from torch import Tensor

import limpid

SETTLED = 20
"""Steps for which a run goes on once the right cause is named: the ranking may still change."""


class Settled(Exception):
    """Nothing more to learn from this run."""


@dataclass
class Record:
    """What became of one run."""

    name: str
    architecture: str
    seed: int
    detected: bool = False  # the doctor said anything at all
    alarm: bool = False  # it said more than that something may be meant
    right: bool = False  # what is said first at the end of the run is an accepted rule
    named: int | None = None  # steps from the onset until an accepted rule was first-ranked; 0 before the first step
    first: str = ""  # what is said first at the end
    early: list[str] = field(default_factory=list)  # said before the onset: wrongly
    findings: list[dict[str, Any]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    crashed: str = ""  # what the run itself ended with
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Attending:
    """The doctor as a user calls it: watch, preflight, and one line at the end of each step."""

    def __init__(self, accepted: tuple[str, ...], onset: int, *, settles: bool) -> None:
        self.accepted, self.onset, self.settles = accepted, onset, settles
        self.named: int | None = None
        self.early: list[str] = []
        self.doctor: Any = None

    def begin(self, loop: Loop) -> None:
        self.doctor = limpid.watch(
            loop.watched, loop.optimizer, scheduler=loop.scheduler, scaler=loop.scaler, say=False
        )
        batches = [loop.batch(0, micro) for micro in range(loop.settings.micro_batches)]
        loop.labels = labels_of(loop, batches)
        self.doctor.preflight(
            batches[0] if len(batches) == 1 else batches,
            loss=lambda model, batch: whole_loss(loop, batches),
            total_steps=loop.settings.steps,
            pretrained=True if loop.settings.pretrained_steps else None,
        )
        self.look(0)

    def step(self, loop: Loop, loss: Tensor, batches: list[Any]) -> None:
        self.doctor.step(loss, batches[0] if len(batches) == 1 else batches)
        self.look(loop.number + 1)
        if self.settles and self.named is not None and loop.number + 1 >= self.onset + self.named + SETTLED:
            raise Settled

    def look(self, done: int) -> None:
        """Is the accepted rule first by now, `done` steps into the run?"""
        said = self.said()
        if not said:
            return
        if done <= self.onset and self.onset:
            self.early = [finding.rule for finding in said if finding.rule not in self.accepted]
        if self.named is None and said[0].rule in self.accepted:
            self.named = max(0, done - self.onset)

    def said(self) -> list[Any]:
        """Alarms, and behind them what may be meant."""
        return [finding for finding in self.doctor.findings if finding.is_said]


def is_said(found: dict[str, Any]) -> bool:
    """Whether a finding, as it is kept, was printed while the run trained."""
    return found["severity"] != "notice" or bool(found["meant"])


def labels_of(loop: Loop, batches: list[Any]) -> int:
    return max(1, sum(count_labels(batch) for batch in batches))


def whole_loss(loop: Loop, batches: list[Any]) -> Tensor:
    """The loss of one step as this loop computes it, over all its micro-batches."""
    total = sum(loop.loss(loop.forward(batch), batch) for batch in batches)
    assert isinstance(total, Tensor)
    return total


def judge(case: Fault | Healthy, architecture: str, seed: int, *, injected: bool = True) -> Record:
    """Run a fault, its twin, or a healthy run, with the doctor; of several ranks, what rank 0 says."""
    if case.ranks == 1:
        return judge_here(case, architecture, seed, injected=injected)
    return on_ranks(lambda: judge_here(case, architecture, seed, injected=injected), case.ranks)[0]


def judge_here(case: Fault | Healthy, architecture: str, seed: int, *, injected: bool) -> Record:
    fault = case if isinstance(case, Fault) and injected else None
    name = case.name if injected else f"{case.name} (twin)"
    record = Record(name, architecture, seed)
    loop = case.loop(architecture, seed, injected=injected)
    alone = case.ranks == 1  # several processes must end together
    watcher = Attending(fault.accepted if fault else (), fault.onset if fault else 0, settles=alone)
    start = time.perf_counter()
    try:
        loop.run(watcher)
    except Settled:
        pass
    except Exception as error:  # a broken run may well crash; the doctor must have spoken before
        record.crashed = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        if fault is None or not crashes_by_itself(fault, architecture, seed):
            record.crashed += "\n" + "".join(traceback.format_exc().splitlines(keepends=True)[-6:])
    record.seconds = time.perf_counter() - start
    if watcher.doctor is None:
        return record
    said = watcher.said()
    record.findings = [
        {"rule": f.rule, "severity": f.severity, "step": f.step, "where": f.where, "says": f.says, "meant": f.meant}
        for f in watcher.doctor.findings
    ]
    record.skipped = dict(getattr(watcher.doctor, "skipped", {}))
    record.early, record.named = watcher.early, watcher.named
    record.detected, record.alarm = bool(said), any(f.severity != "notice" for f in said)
    record.first = said[0].rule if said else ""
    record.right = bool(fault) and record.first in (fault.accepted if fault else ())
    close = getattr(watcher.doctor, "close", None)
    if close is not None:
        close()
    return record


def crashes_by_itself(fault: Fault, architecture: str, seed: int) -> bool:
    """Whether the injected run crashes without the doctor too."""
    try:
        fault.loop(architecture, seed).run()
    except Exception:
        return True
    return False
