"""What the doctor says: a finding, its evidence, and the number that would refute it; and what it could not check."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from limpid.html import table, titled
from limpid.jsonable import jsonable
from limpid.notebook import mimebundle

Severity = Literal["notice", "warning", "fault"]
SEVERITIES: tuple[Severity, ...] = ("notice", "warning", "fault")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, or odd enough to know."""

    rule: str  # slug, a key of RULES
    severity: Severity
    step: int | None = None  # 1 is the first update; None before it
    where: str  # tensor, module, group or row
    says: str  # what, in one or two sentences with the numbers
    cause: str  # why
    fix: str  # what to change
    meant: str = ""  # who does this on purpose: a notice that is said, and an alarm only in a run that suffers
    sure: float = 1.0  # 0 … 1; 1 is an exact test, without a threshold
    refuted_by: str  # the number that would show this finding wrong
    evidence: dict[str, Any] = field(default_factory=dict)  # plain numbers, words and lists of them

    @property
    def is_said(self) -> bool:
        """Whether it is printed while the run trains: an alarm, or a choice that may be meant."""
        return self.severity != "notice" or bool(self.meant)

    def as_json(self) -> str:
        """One line of JSON; numbers that are not finite become words."""
        return json.dumps(jsonable(asdict(self)), ensure_ascii=False)

    def _repr_html_(self) -> str:
        when = "before the first step" if self.step is None else f"step {self.step:,}"
        facts = [("where", f"{self.where}, {when}"), ("found", self.says), ("cause", self.cause), ("fix", self.fix)]
        facts += [("meant", self.meant)] if self.meant else []
        facts += [("wrong if", self.refuted_by), *((name, value) for name, value in self.evidence.items())]
        return titled(f"{self.severity}: {self.rule}", table(facts))

    _repr_mimebundle_ = mimebundle


def finding_from(entry: dict[str, Any]) -> Finding:
    """The finding that a line of findings.jsonl holds."""
    return Finding(**{key: entry[key] for key in Finding.__dataclass_fields__ if key in entry})


LOST = ("device-side assert", "illegal memory access", "unspecified launch failure", "misaligned address")
"""What CUDA says when nothing on the device can be used any more by this process."""


def is_lost(error: BaseException | None) -> bool:
    """Whether an error says that this process can use its device no more."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in LOST)


def is_assertion(error: BaseException | None) -> bool:
    """Whether a kernel has stopped the device, as one does whose index lies outside of what it looks in."""
    return is_lost(error) and LOST[0] in str(error)


OWN_PASSES = "passes of the doctor's own"
"""What is not made where a pass cannot be made again, or would leave a trace."""
NOT_EXAMINED = "not_examined.jsonl"
"""What a run's folder keeps it in, beside findings.jsonl."""
NAMED = 4
"""Things with the same reason that are named; of more it is said how many."""


def by_reason(skipped: Mapping[str, str]) -> dict[str, str]:
    """What was not examined, by the reason: all that has the same in one phrase."""
    reasons: dict[str, list[str]] = {}
    for what, why in skipped.items():
        reasons.setdefault(why, []).append(what)
    more = {why: f" and {len(what) - NAMED} more" if len(what) > NAMED else "" for why, what in reasons.items()}
    return {why: ", ".join(what[:NAMED]) + more[why] for why, what in reasons.items()}


def not_examined(skipped: Mapping[str, str]) -> list[str]:
    """The same in lines that a user reads."""
    return [f"not examined: {what}, because: {why}" for why, what in by_reason(skipped).items()]


MANY = 100
"""Errors after which the doctor stops watching: what fails at every step would only cost time."""


class Skipped(dict[str, str]):
    """What was not checked, and why: the one place where an error inside the doctor ends. Each is reported once."""

    def __init__(
        self,
        report: Callable[[str, str], None] = lambda what, why: None,
        lost: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        super().__init__()
        self.report, self.lost = report, lost
        self.errors = 0
        self.ended = False  # whether the device is lost, on which all of it depends

    def note(self, what: str, why: str) -> None:
        if what not in self:
            self[what] = why
            self.report(what, why)

    def take(self, others: Mapping[str, str]) -> None:
        """Note what an examination could not check; what has the same reason is reported together."""
        new = {what: why for what, why in others.items() if what not in self}
        self.update(new)
        for why, what in by_reason(new).items():
            self.report(what, why)

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Run the block; an error in it ends the block, is noted, and never reaches the training."""
        try:
            yield
        except Exception as error:
            self.failed(what, error)

    def failed(self, what: str, error: Exception) -> None:
        """Note an error."""
        if is_lost(error):
            self.end(error)
            return
        self.errors += 1
        self.note(what, f"{type(error).__name__}: {error}".split("\n")[0][:200])

    def end(self, error: BaseException) -> None:
        """The device is lost: nothing more is tried."""
        if not self.ended:
            self.ended = True
            self.lost(error)

    @property
    def too_many(self) -> bool:
        """Whether nothing is looked at any more."""
        return self.ended or self.errors > MANY
