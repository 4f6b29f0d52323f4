"""A loop that does not do what it did when it worked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.baseline.telling import Told
    from limpid.doctor.fact import Fact
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

    Unlike = dict[str, list[tuple[Fact | None, Fact | None]]]

FAMILY = "baseline"
SHOWN = 3
"""Facts that a finding tells; all are in its evidence."""

NOT_AS_BASELINE = Rule(
    "not-as-baseline",
    FAMILY,
    detects="A loop that does something else than in the run that was kept, `limpid.watch(…, baseline=FILE)`: from the "
    "same seed the first tensor that differs although all before it is equal, from another the first fact.",
    equation=r"\lVert x_t - x_t^{\text{baseline}} \rVert > \text{rounding},\quad f_t \neq f_t^{\text{baseline}}",
    source="differential testing, McKeeman 1998; count sketches, Charikar, Chen & Farach-Colton 2002",
    threshold="tensors are equal to the rounding of their format, terms and depth; of another seed counts, words and "
    "settings are equal; shares lie within {share:g}, or three standard deviations of so many rows; on the first three "
    "steps surprises and weights within a factor of {level:g}, gradients within {size:g}; or among what they were at "
    "other steps of runs that were kept",
    thresholds={
        "share": Threshold(0.06, "rows of another batch"),
        "level": Threshold(1.5, "cross-entropies and matrices of another seed"),
        "size": Threshold(4.0, "gradients and vectors of another seed"),
    },
    cost="sketches of all tensors on the first three steps, a few numbers of each up to the 200th, and some counts of "
    "the batch on a dozen steps",
    needs=(Probe.LOSS, Probe.LOSS_GRADIENT, Probe.GRADIENT_NORM, Probe.CLIPPING, Probe.UPDATES, Probe.FACTS),
    cause="a change of code, data, settings or versions since that run",
    fix="undo the change that the first difference names; where it is meant, delete the file, and the next run "
    "writes it anew",
    refuted_by="the same sketches, or the same facts",
)


@on_step(NOT_AS_BASELINE)
def not_as_baseline(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if watched.baseline is None:
        return
    kept, facts = watched.baseline, history.facts
    unlike = kept.unlike(facts) if facts is not None and facts.step == record.number else {}
    chosen = {part: found for part, pairs in unlike.items() if (found := [pair for pair in pairs if _declared(pair)])}
    others = {part: found for part, pairs in unlike.items() if (found := [p for p in pairs if not _follows(p, chosen)])}
    if kept.told is not None:
        yield _first_difference(kept.told, others, chosen, record.number)
    elif others and not kept.is_alike:
        yield _other_facts(others, chosen, record.number)
    elif chosen or (kept.random_elsewhere and not kept.is_alike):
        yield _as_declared(chosen, record.number)


def _declared(pair: tuple[Fact | None, Fact | None]) -> bool:
    """Whether this run was given this as an argument, and the other another value or none."""
    then, now = pair
    return now is not None and now.declared and (then is None or then.declared)


def _follows(pair: tuple[Fact | None, Fact | None], chosen: Unlike) -> bool:
    """Whether a fact is a choice, or a size that moves with one."""
    then, now = pair
    known = now or then
    sized = known is not None and known.kind == "size" and known.part in ("gradient", "update")
    return known is None or known.declared or (sized and bool(chosen))


def _first_difference(told: Told, unlike: Unlike, chosen: Unlike, step: int) -> Finding:
    """Of a run that did the same number for number until here."""
    excused = told.part in chosen
    facts = "; ".join(_told(*pair) for pair in (chosen if excused else unlike).get(told.part, ())[:SHOWN])
    return NOT_AS_BASELINE.finding(
        severity="warning" if told.certain and not excused else "notice",
        step=step,
        where=told.where,
        says=told.says + (f" {'Another setting' if excused else 'As facts'}: {facts}." if facts else ""),
        cause=told.cause,
        evidence=told.evidence | {"facts": _evidence(unlike), "settings": _evidence(chosen)},
    )


def _other_facts(unlike: Unlike, chosen: Unlike, step: int) -> Finding:
    """Of a run with other weights or batches."""
    first, *behind = unlike
    told = "; ".join(_told(*pair) for pair in unlike[first][:SHOWN])
    more = len(unlike[first]) - SHOWN
    return NOT_AS_BASELINE.finding(
        severity="warning",
        step=step,
        where=first,
        says=f"{first} not as in the baseline: {told}"
        + (f"; and {more} more" if more > 0 else "")
        + (f". Behind it differ {', '.join(behind)}." if behind else "."),
        evidence={"part": first, "facts": _evidence(unlike), "settings": _evidence(chosen)},
    )


def _as_declared(chosen: Unlike, step: int) -> Finding:
    """Of a run that was given other settings, or used random numbers otherwise, and does the same else."""
    first = next(iter(chosen), "data")
    told = "; ".join(_told(*pair) for pairs in chosen.values() for pair in pairs)
    return NOT_AS_BASELINE.finding(
        severity="notice",
        step=step,
        where=first,
        says=f"other settings than in the baseline: {told}."
        if told
        else "random numbers were used elsewhere than in "
        "the baseline, so that what is drawn is another draw; from here on levels are compared, not numbers.",
        evidence={"part": first, "settings": _evidence(chosen)},
    )


def _evidence(unlike: Unlike) -> dict[str, list[str]]:
    return {part: [_told(*pair) for pair in pairs] for part, pairs in unlike.items()}


def _told(then: Fact | None, now: Fact | None) -> str:
    """Which fact, its value now and then."""
    if now is None:
        return f"no {then}"
    return f"{now}, then {'none' if then is None else then.shown}"
