"""A loop that does not do what it is said to be meant to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, on_step

if TYPE_CHECKING:
    from limpid.doctor.expected import Mismatch
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "expected"
MOST = 32
"""Things of one kind that are kept as evidence."""

NOT_AS_EXPECTED = Rule(
    "not-as-expected",
    FAMILY,
    detects="A loop that does something else than its author says it is meant to, `limpid.watch(…, expected=FILE)`: "
    "what is taught, what outputs read, what learns, how the loss is reduced, clipping, rates and their course.",
    equation=r"f_t \neq f^{\text{said}}",
    source="design by contract, Meyer 1992",
    threshold="words, switches and counts are equal, numbers within two percent, rates within a twentieth of the peak; "
    "what a batch decides is seen twice in a row",
    cost="counts of a step that is read for the description anyway",
    needs=(Probe.LOSS, Probe.LOSS_GRADIENT, Probe.GRADIENT_NORM, Probe.CLIPPING, Probe.MODES, Probe.ROWS, Probe.FACTS),
    cause="code, data or settings that do something else than was meant",
    fix="change the code that does it; or, where it is right, what was said",
    refuted_by="the same count, taken by hand",
)


@on_step(NOT_AS_EXPECTED)
def not_as_expected(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    expected = watched.expected
    if expected is None:
        return
    yield from told(expected.judged(watched, record, history, "step"), record.number)
    if history.facts is not None and history.facts.step == record.number:
        yield from told(expected.judged(watched, record, history, "read"), record.number)


def _short(seen: object) -> object:
    return seen[:MOST] if isinstance(seen, list) else seen


def told(found: Iterable[Mismatch], step: int | None) -> Iterator[Finding]:
    """A finding for each thing that is not as said."""
    for one in found:
        yield NOT_AS_EXPECTED.finding(
            severity="warning",
            step=step,
            where=one.key.part,
            says=f"{one.says}.",
            evidence={"part": one.key.part, "key": one.key.name, "said": one.said, "seen": _short(one.seen)},
        )
