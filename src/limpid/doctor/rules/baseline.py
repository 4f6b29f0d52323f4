"""A loop that does not do what it did when it worked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.loop_facts import Fact
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "baseline"
SHOWN = 3
"""Facts that a finding tells; all are in its evidence."""

NOT_AS_BASELINE = Rule(
    "not-as-baseline",
    FAMILY,
    detects="A loop that does something else than in the run whose facts were kept: `limpid.watch(…, baseline=FILE)`.",
    equation=r"f_t \neq f_t^{\text{baseline}}",
    source="definition",
    threshold="counts, words and settings are equal; shares lie within {share:g}, or three standard deviations "
    "of so many rows; on the first three steps surprises and weights within a factor of {level:g}, gradients within "
    "{size:g}",
    thresholds={
        "share": Threshold(0.06, "rows of another batch"),
        "level": Threshold(1.5, "cross-entropies and matrices of another seed"),
        "size": Threshold(4.0, "gradients and vectors of another seed"),
    },
    cost="some counts of the batch and of what was read anyway, on steps 1, 2, 3 and every 50th",
    needs=(Probe.LOSS, Probe.LOSS_GRADIENT, Probe.GRADIENT_NORM, Probe.CLIPPING, Probe.UPDATES, Probe.FACTS),
    cause="a change of code, data, settings or versions since that run",
    fix="undo the change that the first of these facts names; where it is meant, delete the file, and the next run "
    "writes it anew",
    refuted_by="the same facts",
)


@on_step(NOT_AS_BASELINE)
def not_as_baseline(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    facts = history.facts
    if watched.baseline is None or facts is None or facts.step != record.number:
        return
    unlike = watched.baseline.unlike(facts)
    if not unlike:
        return
    first, *behind = unlike
    told = "; ".join(_told(*pair) for pair in unlike[first][:SHOWN])
    more = len(unlike[first]) - SHOWN
    yield NOT_AS_BASELINE.finding(
        severity="warning",
        step=record.number,
        where=first,
        says=f"{first} not as in the baseline: {told}"
        + (f"; and {more} more" if more > 0 else "")
        + (f". Behind it differ {', '.join(behind)}." if behind else "."),
        evidence={part: [_told(*pair) for pair in pairs] for part, pairs in unlike.items()},
    )


def _told(then: Fact | None, now: Fact | None) -> str:
    """Which fact, its value now and then."""
    if now is None:
        return f"no {then}"
    return f"{now}, then {'none' if then is None else then.shown}"
