"""What a rule is: one fault, the equation that shows it, the thresholds it is decided by, and the functions that look.

A rule needs no torch until one of its functions runs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from limpid.doctor.finding import Finding, Severity

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.logs.table import Curves
    from limpid.doctor.replay.nan_replay import BrokenStep
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched


LONG_NUMBER = re.compile(r"\b\d{13,}(?:\.\d+)?|\b\d{1,3}(?:,\d{3}){4,}(?:\.\d+)?")
"""What nobody reads digit by digit."""


class Probe(Enum):
    """What is measured; what no rule needs is not."""

    PARAMETERS = "names, values and groups of the parameters"
    BATCH = "the integers of a batch"
    SCHEDULE = "the schedule, simulated to its end"
    FORWARD = "forward passes of a few rows before the first step"
    MODULES = "the output of each module in one forward pass"
    BACKWARD = "one forward and backward pass of the loop's loss"
    ATTENTION = "queries, keys and scores of each attention"
    LOSS_GRADIENT = "the gradient of the logits"
    LOSS_INPUTS = "the arguments of the loss function"
    ARGUMENTS = "the arguments of losses and layers, against their documentation"
    LOGIT_LEVEL = "mean, largest and log Z of the logits"
    EVENTS = "the order of calls in a step"
    MODES = "which modules are in training mode"
    LOSS = "the loss of each step"
    GRADIENT_NORM = "the norm of the gradient"
    LEFT_OVER = "gradients that are there before the backward pass"
    GRAPH = "the parameters that the loss depends on, in its graph"
    PASSES = "a sample of the gradients at the borders of each backward pass"
    UNITS = "rows and columns of gradients that are 0"
    CLIPPING = "the gradients that clipping is given"
    UPDATES = "a sample of each tensor before and after the update"
    WEIGHTS_KEPT = "a few elements of three tensors after each update"
    ROWS = "a hash and a histogram of each row"
    REPLAY = "random state and arguments of each forward pass, to repeat it"
    FACTS = "what the loop does, as counts and settings of a step"
    RANKS = "a line of numbers from each process"
    LOG = "a log of the run"


class Threshold(float):
    """A number that a rule decides by, and what it follows from."""

    why: str

    def __new__(cls, value: float, why: str) -> Threshold:
        made = super().__new__(cls, value)
        made.why = why
        return made

    def __eq__(self, other: object) -> bool:  # counts are compared with thresholds
        return float(self) == other

    __hash__ = float.__hash__


BeforeFirstStep = Callable[["Exam"], Iterator[Finding]]
OnStep = Callable[["Watched", "StepRecord", "History"], Iterator[Finding]]
AtBreak = Callable[["BrokenStep"], Iterator[Finding]]
InLog = Callable[["Curves"], Iterator[Finding]]
OFTEN = 10
"""Steps after which the curves of a running loop are looked at again."""
PHASES = ("before_first_step", "on_step", "at_break", "in_log")


@dataclass(frozen=True, eq=False)
class Rule:
    """One fault that the doctor knows, all of it: what is printed, what decides, what is measured, who looks."""

    slug: str
    family: str  # the symptom: its file in rules/
    detects: str  # one sentence
    equation: str  # LaTeX or a plain relation
    source: str  # paper and equation, or "definition"
    threshold: str  # in words; {name} stands for the threshold of that name
    cost: str  # what looking takes
    needs: tuple[Probe, ...]
    cause: str = ""  # what usually causes it; findings may say it more exactly
    fix: str = ""
    refuted_by: str = ""
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
    meant: str = ""  # who does this on purpose; findings may say it more exactly, or that nobody can mean it: None
    suffers: bool = False  # whether a run in which this is found suffers, whatever was meant
    explains: tuple[str, ...] = ()  # rules whose findings are consequences of this one
    tries_smaller_step: bool = False  # whether the step that it speaks at is repeated at a tenth of its rate
    at_first_update: bool = False  # whether a loop's first update is examined although its steps are looked at, too
    again: bool = False  # whether what is examined before the first step is so at later ones, too
    functions: dict[str, list[Callable[..., Iterator[Finding]]]] = field(default_factory=dict, repr=False)  # by phase

    def __getitem__(self, name: str) -> Threshold:
        """A threshold by its name."""
        return self.thresholds[name]

    @property
    def criterion(self) -> str:
        """The threshold in words and numbers, and what each number follows from."""
        text = self.threshold.format(**self.thresholds)
        return "; ".join([text, *(f"{value:g}: {value.why}" for value in self.thresholds.values())])

    def finding(
        self,
        *,
        severity: Severity,
        where: str,
        says: str,
        step: int | None = None,
        cause: str = "",
        fix: str = "",
        refuted_by: str = "",
        meant: str | None = "",
        sure: float = 1.0,
        evidence: Mapping[str, Any] | None = None,
    ) -> Finding:
        """A finding of this rule; cause, fix, refutation and who may mean it are the rule's own where none is given.

        meant   None where nobody can mean what this finding shows
        """
        return Finding(
            rule=self.slug,
            severity=severity,
            step=step,
            where=where,
            says=LONG_NUMBER.sub(lambda match: f"{float(match[0].replace(',', '')):.3g}", says),
            cause=cause or self.cause,
            fix=fix or self.fix,
            meant="" if meant is None or severity == "notice" else meant or self.meant,
            sure=sure,
            refuted_by=refuted_by or self.refuted_by,
            evidence=dict(evidence or {}),
        )

    def card(self) -> dict[str, Any]:
        """What `limpid doctor --explain` prints."""
        return {
            "slug": self.slug,
            "family": self.family,
            "detects": self.detects,
            "equation": self.equation,
            "source": self.source,
            "threshold": self.criterion,
            "thresholds": {name: float(value) for name, value in self.thresholds.items()},
            "cost": self.cost,
            "needs": [probe.value for probe in self.needs],
            "looks": [phase.replace("_", " ") for phase in PHASES if self.functions.get(phase)],
            "cause": self.cause,
            "fix": self.fix,
            "refuted_by": self.refuted_by,
            "meant": self.meant,
            "explains": list(self.explains),
        }


ASKS: dict[OnStep, str] = {}
"""What of a step's record each function looks at first."""
Function = TypeVar("Function", bound=Callable[..., Iterator[Finding]])


def _registered(phase: str, rules: Sequence[Rule]) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        for rule in rules:
            rule.functions.setdefault(phase, []).append(function)
        return function

    return register


def before_first_step(*rules: Rule) -> Callable[[BeforeFirstStep], BeforeFirstStep]:
    """Have a function look for these rules' faults in an examination."""
    return _registered("before_first_step", rules)


def on_step(*rules: Rule, asks: str = "") -> Callable[[OnStep], OnStep]:
    """Have a function look for these rules' faults when a step has ended.

    asks    what of the record it looks at: of steps that have none of it, which are most, it is not asked
    """

    def register(function: OnStep) -> OnStep:
        ASKS[function] = asks
        return _registered("on_step", rules)(function)

    return register


def at_break(*rules: Rule) -> Callable[[AtBreak], AtBreak]:
    """Have a function explain a step whose loss or gradient is not finite; the first that can is believed."""
    return _registered("at_break", rules)


def in_log(*rules: Rule) -> Callable[[InLog], InLog]:
    """Have a function look for these rules' faults in a log."""
    return _registered("in_log", rules)


def in_curves(*rules: Rule) -> Callable[[InLog], InLog]:
    """Have a function look for these rules' faults in a log, and in what the loop logs while it runs."""

    def register(function: InLog) -> InLog:
        @functools.wraps(function)
        def while_running(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
            if record.metrics and (record.number <= OFTEN or record.number % OFTEN == 0):
                yield from function(history.curves)

        on_step(*rules, asks="metrics")(while_running)
        return in_log(*rules)(function)

    return register


def functions(phase: str, rules: Iterable[Rule]) -> list[Callable[..., Iterator[Finding]]]:
    """The functions of a phase that look for any of these rules, each once, in the order of the rules."""
    return list(dict.fromkeys(function for rule in rules for function in rule.functions.get(phase, ())))
