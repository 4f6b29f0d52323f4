"""The rates of a schedule over the run: 0, over too early, never at their peak."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding, Severity
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, in_log, on_step
from limpid.doctor.rules.schedule_order import SCHEDULE_PER_MICRO_BATCH

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.logs.table import Curves
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "schedule"

PER_EPOCH = ("StepLR", "MultiStepLR", "ExponentialLR", "CosineAnnealingLR", "PolynomialLR", "MultiplicativeLR")
"""Schedules that many advance once per epoch: whether these advance with every update is only seen in the loop."""

ZEROS = Threshold(5, "a warm-up may begin with one update at 0, and a schedule end with one")
LATER = Threshold(20, "who lets moments fill first sets the rate by hand after some updates")
FILLS = "moments or statistics that are to fill before weights move"
AHEAD = 1000
"""Updates for which a schedule whose rate is 0 is run ahead."""

LEARNING_RATE_ZERO = Rule(
    "learning-rate-zero",
    FAMILY,
    detects="A learning rate of 0: the whole run cannot move the weights.",
    equation=r"\textstyle\sum_t \eta_t = 0",
    source="definition",
    threshold="exact: 0 at every planned update, or for every group at {steps:g} steps in a row with no other rate "
    "before, {later:g} where no schedule tells what comes or the rate rises later, or for one group of several",
    thresholds={"steps": ZEROS, "later": LATER},
    cost="none",
    needs=(Probe.SCHEDULE, Probe.EVENTS, Probe.LOG),
    cause="rate, warm-up or schedule give 0",
    fix="print optimizer.param_groups[0]['lr'] over the run; give the schedule a rate to scale",
    refuted_by="a rate above 0",
    explains=("loss-plateau", "loss-never-falls", "weights-never-change"),
)

SCHEDULE_ENDS_EARLY = Rule(
    "schedule-ends-early",
    FAMILY,
    detects="A schedule that is over long before the run is.",
    equation=r"\eta_t < 0.01 \max \eta \;\text{for a quarter of the run}",
    source="definition; the schedule simulated to its end",
    threshold="more than {share:.0%} of the planned steps, or of those so far (at least {least:g}), at under {low:.0%} "
    "of the peak; or a rate of 0 for {zeros:g} steps in the first {before:.0%} of the run",
    thresholds={
        "share": Threshold(0.25, "schedules that cool down for a fifth of the run are common"),
        "least": Threshold(20, "a quarter of fewer is noise"),
        "low": Threshold(0.01, "cosines end at a tenth or at 0, and pass 1 % in the last 6 % of the way"),
        "zeros": ZEROS,
        "before": Threshold(0.9, "a schedule may end a little early"),
    },
    cost="one simulation of the schedule",
    meant="a tail at a rate of nearly 0, rests between stages, or a decay that is to be fast",
    needs=(Probe.SCHEDULE, Probe.EVENTS, Probe.LOG),
    cause="the schedule was made for fewer updates than the run makes",
    fix="give it the number of optimizer updates",
    refuted_by="a rate above 1 % of the peak for most of it",
    explains=("loss-plateau", "learning-rate-zero"),
)

SCHEDULE_NEVER_PEAKS = Rule(
    "schedule-never-peaks",
    FAMILY,
    detects="A warm-up longer than the run: the planned rate is never reached.",
    equation=r"\max_{t \le T} \eta_t < 0.9\, \eta_{\text{peak}}",
    source="definition; the schedule simulated to its end",
    threshold="under {peak:.0%} of the rate the schedule was given, still rising at the planned end; in a log a rate "
    "that rises from under {begun:.0%} of its last value to the planned end",
    thresholds={
        "peak": Threshold(0.9, "cosines without warm-up start below their peak by less"),
        "begun": Threshold(0.5, "a warm-up starts near 0, and a rate that creeps up is another thing"),
    },
    cost="one simulation of the schedule",
    meant="a short run cut from a long one, or a rate that is to rise to the end, as to find its limit",
    needs=(Probe.SCHEDULE, Probe.LOG),
    cause="a warm-up as long as the run, or given in micro-batches, samples or for another number of processes",
    fix="a warm-up that ends well before the run, in updates",
    explains=("loss-plateau",),
)


@before_first_step(LEARNING_RATE_ZERO)
def zero_to_the_end(exam: Exam) -> Iterator[Finding]:
    if exam.rates and max(exam.rates) == 0:
        yield _zero(None, f"at all {len(exam.rates)} steps", len(exam.rates))


@on_step(LEARNING_RATE_ZERO, SCHEDULE_ENDS_EARLY)
def zero_for_some_steps(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if not record.has_rates:
        return
    zeros = history.in_a_row(LEARNING_RATE_ZERO.slug, history.rates[-1] == 0)
    if zeros not in (ZEROS, LATER):
        return
    peak = history.top_rate
    if peak == 0:
        if history.updates and max(history.updates[-1][1].change, default=0.0) > 0:
            return  # a rule of one's own, which asks no rate
        coming = watched.rates_to_come(AHEAD)
        if zeros == LATER or (coming is not None and not any(coming)):
            yield _zero(
                record.number, f"at each of the last {zeros} steps", zeros, any(coming or ()), coming is not None
            )
    elif zeros == LATER:
        return
    elif not watched.total_steps or record.number < SCHEDULE_ENDS_EARLY["before"] * watched.total_steps:
        yield SCHEDULE_ENDS_EARLY.finding(
            severity="warning",
            step=record.number,
            where="schedule",
            says=f"the rate has been 0 since step {record.number + 1 - int(ZEROS)}, and steps go on: they change "
            "nothing.",
            sure=0.95,
            refuted_by="a rate above 0",
            evidence={"peak": peak},
        )


def _zero(step: int | None, when: str, steps: int, rises: bool = False, known: bool = True) -> Finding:
    return LEARNING_RATE_ZERO.finding(
        severity="warning" if rises else "fault",
        step=step,
        where="every parameter group",
        says=f"the learning rate is 0 {when}: " + ("its schedule raises it later." if rises else "nothing can change."),
        cause="a warm-up in whole numbers (step // warmup), or a schedule that begins late" if rises else "",
        meant=FILLS if rises else None if known else "a rate that the loop raises later by hand",
        sure=0.5 if rises else 1.0,
        evidence={"steps": steps},
    )


@on_step(LEARNING_RATE_ZERO)
def zero_for_a_group(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """One group of several, the others of which are stepped with a rate."""
    groups = dict(watched.groups)
    for index, rates in history.group_rates.items() if record.has_rates and history.top_rate else ():
        trained = [p for p in groups.get(index, {}).get("params", ()) if p.requires_grad]
        if rates.updates == LATER and rates.high == 0 and trained:
            yield LEARNING_RATE_ZERO.finding(
                severity="warning",
                step=record.number,
                where=f"parameter group {index}",
                says=f"the rate of parameter group {index} ({sum(p.numel() for p in trained):,} parameters) was 0 at "
                f"all {rates.updates} updates, while others have one: it does not change.",
                cause="the loop writes its rate into another group, or the group was given none",
                meant="a part that is held still by its rate, or until its stage",
                evidence={"group": index, "updates": rates.updates},
            )


@before_first_step(SCHEDULE_NEVER_PEAKS)
def peak_is_out_of_reach(exam: Exam) -> Iterator[Finding]:
    rates, given = exam.rates, exam.peak_rate
    if not rates or len(rates) < 10 or not given or max(rates) >= SCHEDULE_NEVER_PEAKS["peak"] * given:
        return
    top = max(rates)
    if any(getattr(scheduler, "last_epoch", 0) > 0 for scheduler in exam.schedulers):
        return  # resumed: its peak may lie behind it
    if rates[-1] < top:
        return  # it falls again: a shape of its own, not a warm-up that the run ends in
    yield SCHEDULE_NEVER_PEAKS.finding(
        severity="warning",
        where=type(exam.schedulers[0]).__name__,
        says=f"in {len(rates)} updates the rate reaches {top:.1e} of {given:.1e} ({top / given:.0%}): the warm-up is "
        "longer than the run.",
        sure=0.95,
        refuted_by=f"a rate of {given:.1e} before update {len(rates)}",
        evidence={"top": top, "given": given},
    )


@before_first_step(SCHEDULE_ENDS_EARLY)
def over_before_the_end(exam: Exam) -> Iterator[Finding]:
    if exam.rates and len(exam.rates) >= 10:
        per_epoch = any(type(scheduler).__name__ in PER_EPOCH for scheduler in exam.schedulers)
        name = type(exam.schedulers[0]).__name__
        yield from _over_early(exam.rates, name, None, "notice" if per_epoch else "warning")


@on_step(SCHEDULE_ENDS_EARLY)
def over_as_it_advances(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Once it is seen that the schedule advances with every update: the rates so far and those to come."""
    per = len(watched.schedulers)
    if record.number > 60 or len(history.schedule_steps) != 4:
        return
    if per and history.schedule_steps[1:] == [per] * 3 and watched.planned:
        rates = watched.rates_to_come(watched.planned - record.number)
        if rates:
            past = history.rates[:-1] if record.has_rates else history.rates
            yield from _over_early([*past, *rates], type(watched.schedulers[0]).__name__, record.number)


def _over_early(
    rates: Sequence[float], name: str, step: int | None, severity: Severity = "warning"
) -> Iterator[Finding]:
    """Rates, one per update to the planned end, of which a quarter is as good as 0."""
    rule, top = SCHEDULE_ENDS_EARLY, max(rates)
    tail = next((i for i in range(len(rates) - 1, -1, -1) if rates[i] >= rule["low"] * top), -1)
    idle = len(rates) - 1 - tail
    if top and idle > rule["share"] * len(rates):
        yield rule.finding(
            severity=severity,
            step=step,
            where=name,
            says=f"the rate is below {rule['low']:.0%} of its peak from update {tail + 2} of {len(rates)} on: "
            f"{idle / len(rates):.0%} of the run learns nothing.",
            sure=0.9,
            evidence={"end": tail + 1, "planned": len(rates)},
        )


@on_step(SCHEDULE_ENDS_EARLY)
def faded(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A schedule that has brought the rate down, while steps go on for a quarter of the run so far."""
    rule, rates = SCHEDULE_ENDS_EARLY, history.rates
    if not record.has_rates or len(rates) < rule["least"] or not watched.schedulers:
        return
    top, now, done = history.top_rate, rates[-1], len(rates)
    if now >= rule["low"] * top:
        return
    low = sum(1 for rate in rates if rate < rule["low"] * top)
    falls = rates.index(top) < done - low  # it is no warm-up
    if not falls or low <= rule["share"] * max(done, watched.total_steps or 0):
        return
    asked = any("Plateau" in type(scheduler).__name__ for scheduler in watched.schedulers)  # a measure said so
    yield rule.finding(
        severity="notice" if asked else "warning",
        step=record.number,
        where=type(watched.schedulers[0]).__name__,
        says=f"the rate has been below {rule['low']:.0%} of its peak {top:.1e} for {low} of {done} steps (it is "
        f"{now:.1e}), and steps go on: they learn nothing.",
        cause="a schedule made for fewer updates than the run makes, or one per epoch that advances with every update",
        sure=0.85,
        refuted_by="a rate above 1 % of the peak",
        evidence={"peak": top, "rate": now, "low": low},
    )


@in_log(LEARNING_RATE_ZERO, SCHEDULE_ENDS_EARLY, SCHEDULE_PER_MICRO_BATCH, SCHEDULE_NEVER_PEAKS)
def rates_of_a_log(curves: Curves) -> Iterator[Finding]:
    points = [(step, rate) for step, rate in curves.series.get("learning_rate", []) if math.isfinite(rate)]
    if len(points) < 10:
        return
    rates = [rate for _, rate in points]
    top, last = max(rates), points[-1][0]
    if top == 0:
        yield LEARNING_RATE_ZERO.finding(
            severity="fault",
            step=points[0][0],
            where="learning rate",
            says="the learning rate is 0 in every entry.",
            sure=0.95,
            evidence={"entries": len(rates)},
        )
        return
    end = max(step for step, rate in points if rate >= SCHEDULE_ENDS_EARLY["low"] * top)
    idle = (last - end) / max(1, last - points[0][0])
    rises = rates[-1] == top and rates[0] < SCHEDULE_NEVER_PEAKS["begun"] * top and rates == sorted(rates)
    if idle > SCHEDULE_ENDS_EARLY["share"]:
        yield _idle_in_log(end, curves.max_steps or last, idle)
    elif rises and curves.max_steps and last >= curves.max_steps:
        yield SCHEDULE_NEVER_PEAKS.finding(
            severity="warning",
            step=last,
            where="learning rate",
            says=f"the rate rises to the very end ({top:.1e}): the warm-up is as long as the run, or longer.",
            sure=0.8,
            refuted_by="a rate that falls before the end",
            evidence={"top": top},
        )


def _idle_in_log(end: int, total: int, idle: float) -> Finding:
    """A rate that is as good as 0 from `end` on: stepped too often where that is a whole part of the run."""
    ratio = total / max(end, 1)
    whole = round(ratio)
    often = whole > 1 and abs(ratio / whole - 1) < SCHEDULE_PER_MICRO_BATCH["near"]
    guess = f": 1/{whole} of the run, as if it were stepped {whole} times per update" if often else ""
    rule = SCHEDULE_PER_MICRO_BATCH if often else SCHEDULE_ENDS_EARLY
    return rule.finding(
        severity="warning",
        step=end,
        where="learning rate",
        says=f"the rate is below {SCHEDULE_ENDS_EARLY['low']:.0%} of its peak from step {end} of {total} on{guess}.",
        cause="a schedule made for another number of steps, or stepped per micro-batch or per process",
        fix="step it once per optimizer update, with the number of updates",
        sure=0.8 if often else 0.9,
        refuted_by="a rate above 1 % of the peak for most of the run",
        evidence={"end": end, "total": total, "idle": idle},
    )
