"""When the schedule advances, how often, and of which optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "schedule_order"
SHORT = 0.9
"""Of the run: a schedule that ends before was not made for what it counts."""

SCHEDULE_PER_MICRO_BATCH = Rule(
    "schedule-per-micro-batch",
    FAMILY,
    detects="A schedule that advances more than once per update, or never.",
    equation=r"\text{schedule steps} / \text{updates} \neq 1",
    source="definition; event counts; accelerate#2926",
    threshold="more than {ratio:g} schedule steps per update on average and more than one in each of the last two, or "
    "none in {never:g} updates while the rate is below {held:.0%} of its peak, or in {part:.0%} of the run (one that "
    "is stepped once per epoch is not meant); in a log a schedule that ends at a whole part of the run within {near:g}",
    thresholds={
        "ratio": Threshold(1.5, "half-way between once and twice"),
        "never": Threshold(10, "a warm-up in updates has moved by then"),
        "held": Threshold(0.5, "a rate that is held down by the schedule, not chosen"),
        "part": Threshold(0.25, "an epoch of a shorter run"),
        "near": Threshold(0.06, "logs are written every few steps, and of 16 micro-batches the end is 1/16"),
    },
    cost="none: event counters",
    meant="a schedule that counts micro-batches or epochs, and is as long as they are",
    needs=(Probe.EVENTS, Probe.SCHEDULE, Probe.LOG),
    cause="scheduler.step() inside the loop over micro-batches, or once per process",
    fix="scheduler.step() once, after optimizer.step()",
    refuted_by="one schedule step per update",
    explains=("schedule-ends-early", "schedule-before-update", "learning-rate-zero", "loss-plateau"),
)

SCHEDULE_BEFORE_UPDATE = Rule(
    "schedule-before-update",
    FAMILY,
    detects="A schedule that advances between the backward pass and the update: its first rate is skipped.",
    equation=r"\text{order: backward, step, schedule}",
    source="definition; event order; torch.optim's documentation, since 1.1",
    threshold="exact, in {steps:g} steps in a row; a schedule advanced before the forward pass is not meant",
    thresholds={"steps": Threshold(3, "twice may be set-up and a skipped update")},
    cost="none: event counters",
    meant="a warm-up whose first rate, 0, is to be skipped",
    needs=(Probe.EVENTS,),
    cause="scheduler.step() before optimizer.step()",
    fix="optimizer.step(), then scheduler.step()",
    refuted_by="an update before the schedule's step",
)

SCHEDULE_OF_ANOTHER_OPTIMIZER = Rule(
    "schedule-of-another-optimizer",
    FAMILY,
    detects="A schedule that sets the rate of an optimizer that is not the one stepping.",
    equation=r"\text{schedule.optimizer} \neq \text{optimizer}",
    source="definition; identity",
    threshold="exact: identity",
    cost="none",
    needs=(Probe.PARAMETERS,),
    cause="the optimizer was created again after the schedule",
    fix="build the schedule last",
    refuted_by="scheduler.optimizer is optimizer",
)


@before_first_step(SCHEDULE_OF_ANOTHER_OPTIMIZER)
def another_optimizer(exam: Exam) -> Iterator[Finding]:
    ours = {id(optimizer) for optimizer in exam.optimizers}
    ours |= {id(getattr(optimizer, "optimizer", None)) for optimizer in exam.optimizers}
    for scheduler in exam.schedulers:
        target = getattr(getattr(scheduler, "scheduler", scheduler), "optimizer", None)
        target = getattr(target, "optimizer", target)
        if target is not None and exam.optimizers and id(target) not in ours:
            yield SCHEDULE_OF_ANOTHER_OPTIMIZER.finding(
                severity="fault",
                where=type(scheduler).__name__,
                says="the schedule sets the rate of another optimizer than the one that steps.",
                meant=None if _of_this_model(target, exam) else "a schedule of another model's optimizer",
            )


def _of_this_model(optimizer: Any, exam: Exam) -> bool:
    """Whether an optimizer holds a parameter of the model."""
    groups = getattr(optimizer, "param_groups", [])
    return any(id(parameter) in exam.info.names for group in groups for parameter in group["params"])


@on_step(SCHEDULE_BEFORE_UPDATE)
def advances_too_soon(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    events, rule = record.events, SCHEDULE_BEFORE_UPDATE
    soon = {"schedule", "update", "backward"} <= set(events)
    soon = soon and events.index("backward") < events.index("schedule") < events.index("update")
    if history.in_a_row(rule.slug, soon) == rule["steps"]:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where=type(watched.schedulers[0]).__name__,
            says="the schedule advances between backward and the update: its first rate is never used, and each "
            "update is made at the rate of the next.",
            sure=0.9,
            evidence={"order": events[:12]},
        )


@on_step(SCHEDULE_PER_MICRO_BATCH)
def advances_too_often(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    from limpid.doctor.watched import planned_steps

    per = len(watched.schedulers)
    if not per or record.number > 60:
        return
    counts = history.schedule_steps[1:]  # what came before the first update is set-up
    if len(counts) < 2:
        return
    ratio = sum(counts) / len(counts) / per
    if ratio > SCHEDULE_PER_MICRO_BATCH["ratio"] and min(counts[-2:]) > per:
        planned = planned_steps(watched.schedulers) or watched.planned
        when = f"; it was made for {planned:,} steps and ends at update {planned / ratio:,.0f}" if planned else ""
        yield SCHEDULE_PER_MICRO_BATCH.finding(
            severity="fault",
            step=record.number,
            where=type(watched.schedulers[0]).__name__,
            says=f"the schedule advances {ratio:.3g} times per optimizer step{when}.",
            meant=None if planned and watched.total_steps and planned / ratio < SHORT * watched.total_steps else "",
            evidence={"ratio": ratio, "micro_batches": len(record.calls), "updates": len(counts)},
        )


@on_step(SCHEDULE_PER_MICRO_BATCH)
def never_advances(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A schedule that nobody steps, while it holds the rate down or a good part of the run goes by."""
    rule = SCHEDULE_PER_MICRO_BATCH
    if not watched.schedulers or history.schedule_advanced or not record.rates or record.number < rule["never"]:
        return
    given, now = watched.peak_rate, max(record.rates)
    held = 0 < now < rule["held"] * given
    total = watched.total_steps
    long = total is not None and record.number > max(rule["never"], rule["part"] * total)
    if (held and record.number == rule["never"]) or (long and not history.never_advanced):
        history.never_advanced = True
        yield rule.finding(
            severity="fault" if held else "warning",
            step=record.number,
            where=type(watched.schedulers[0]).__name__,
            says=f"the schedule has not advanced in {record.number} updates: the rate stays at {now:.1e} (it was given "
            f"{given:.1e}).",
            cause="scheduler.step() is missing, or called once an epoch: a warm-up that is counted in updates never "
            "ends",
            fix="scheduler.step() after each optimizer.step(); in Lightning {'scheduler': …, 'interval': 'step'}",
            sure=0.9,
            refuted_by="one schedule step",
            evidence={"updates": record.number, "rate": now, "given": given},
        )
