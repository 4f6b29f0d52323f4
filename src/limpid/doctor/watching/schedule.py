"""The learning rate while a run goes on: when its schedule advances, how often, and where it has come to."""

from __future__ import annotations

import math
from collections.abc import Iterator

from limpid.doctor.checks.configuration import over_early
from limpid.doctor.checks.optimisation import decayed, zero_rate
from limpid.doctor.finding import Finding
from limpid.doctor.schedules import peak, simulated
from limpid.doctor.step_record import History, StepRecord
from limpid.doctor.watched import Watched


def schedule_before_update(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A schedule that advances between the backward pass and the update: the first rate is never used."""
    events = record.events
    early = False
    if "schedule" in events and "update" in events and "backward" in events:
        early = events.index("backward") < events.index("schedule") < events.index("update")
    history.facts["early_schedule"] = history.facts.get("early_schedule", 0) + 1 if early else 0
    if history.facts["early_schedule"] == 3:
        yield Finding(
            rule="schedule-before-update",
            severity="warning",
            step=record.number,
            where=type(watched.schedulers[0]).__name__,
            says="the schedule advances between backward and the update: its first rate is never used, and "
            "each update is made at the rate of the next.",
            cause="scheduler.step() before optimizer.step()",
            fix="optimizer.step(), then scheduler.step()",
            sure=0.9,
            refuted_by="an update before the schedule's step",
            evidence={"order": events[:12]},
        )


def schedule_per_update(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if not watched.schedulers:
        return
    # schedules may be stepped after step() was told: a step's own count can lag by one, so pairs are looked at
    history.schedule_per_update.append(record.events.count("schedule"))
    yield from _never_advanced(watched, record, history)
    counts = history.schedule_per_update[1:]  # what came before the first update is set-up
    per = len(watched.schedulers)
    if len(counts) < 2 or record.number > 60:
        return
    ratio = sum(counts) / len(counts) / per
    if len(counts) == 3 and counts == [per] * 3 and watched.planned:
        rates = simulated(watched.schedulers[0], watched.planned - record.number)
        if rates:
            yield from over_early([*history.rates, *rates], type(watched.schedulers[0]).__name__, record.number)
    if ratio > 1.5 and min(counts[-2:]) > per:
        planned = watched.planned
        when = f"; it was made for {planned:,} steps and ends at update {planned / ratio:,.0f}" if planned else ""
        yield Finding(
            rule="schedule-per-micro-batch",
            severity="fault",
            step=record.number,
            where=type(watched.schedulers[0]).__name__,
            says=f"the schedule advances {ratio:.3g} times per optimizer step{when}.",
            cause="scheduler.step() inside the loop over micro-batches, or once per process",
            fix="scheduler.step() once, after optimizer.step()",
            refuted_by="one schedule step per update",
            evidence={"ratio": ratio, "micro_batches": len(record.calls), "updates": len(counts)},
        )


def _never_advanced(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A schedule that nobody steps, while it holds the rate down or a good part of the run goes by."""
    if sum(history.schedule_per_update) or not record.rates or record.number < 10:
        return
    given = peak(watched.schedulers, [g for o in watched.optimizers for g in o.param_groups])
    held = 0 < max(record.rates) < 0.5 * given
    long = watched.total_steps is not None and record.number > max(10, watched.total_steps / 4)
    if (held and record.number == 10) or (long and not history.facts.get("schedule_told")):
        history.facts["schedule_told"] = True
        yield Finding(
            rule="schedule-per-micro-batch",
            severity="fault" if held else "warning",
            step=record.number,
            where=type(watched.schedulers[0]).__name__,
            says=f"the schedule has not advanced in {record.number} updates: the rate stays at "
            f"{max(record.rates):.1e} (it was given {given:.1e}).",
            cause="scheduler.step() is missing",
            fix="scheduler.step() once, after optimizer.step()",
            sure=0.9,
            refuted_by="one schedule step",
            evidence={"updates": record.number, "rate": max(record.rates), "given": given},
        )


def rates(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Rates of 0, a schedule that is over while steps go on, and decay that has added up."""
    if not record.rates or not record.updated:
        return
    top = max(record.rates)
    history.rates.append(top)
    history.zero_rates = history.zero_rates + 1 if top == 0 else 0
    if history.zero_rates == 5:
        peak = max(history.rates)
        if peak == 0:
            yield zero_rate(record.number, 5)
        elif not watched.total_steps or record.number < 0.9 * watched.total_steps:
            yield Finding(
                rule="schedule-ends-early",
                severity="warning",
                step=record.number,
                where="schedule",
                says=f"the rate has been 0 since step {record.number - 4}, and steps go on: they change nothing.",
                cause="the schedule was made for fewer updates than the run makes",
                fix="give it the number of updates",
                sure=0.95,
                refuted_by="a rate above 0",
                evidence={"peak": peak},
            )
    yield from _faded(watched, record, history)
    gains = history.facts.setdefault("decayed_gains", _decayed_gains(watched))
    if gains:
        history.decay_done += gains[1] * top
        factor = math.exp(-history.decay_done)
        if factor < 0.9 and (record.number % 50 == 0 or history.decay_done > 0.2):
            yield decayed(gains[0], [], gains[1], factor, record.number)


def _faded(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A schedule that has brought the rate below 1 % of its peak, while steps go on for a quarter of the run so far."""
    top = max(history.rates)
    low = sum(1 for rate in history.rates if rate < 0.01 * top)
    done = len(history.rates)
    falls = history.rates[-1] < 0.01 * top and history.rates.index(top) < done - low  # it is no warm-up
    if done < 20 or not watched.schedulers or not falls or low <= 0.25 * max(done, watched.total_steps or 0):
        return
    yield Finding(
        rule="schedule-ends-early",
        severity="warning",
        step=record.number,
        where=type(watched.schedulers[0]).__name__,
        says=f"the rate has been below 1 % of its peak {top:.1e} for {low} of {done} steps (it is "
        f"{history.rates[-1]:.1e}), and steps go on: they learn nothing.",
        cause="a schedule made for fewer updates than the run makes, or one per epoch that advances with every update",
        fix="give it the number of optimizer updates",
        sure=0.85,
        refuted_by="a rate above 1 % of the peak",
        evidence={"peak": top, "rate": history.rates[-1], "low": low},
    )


def _decayed_gains(watched: Watched) -> tuple[list[str], float] | None:
    names, decay = [], 0.0
    for optimizer in watched.optimizers:
        for group in optimizer.param_groups:
            amount = float(group.get("weight_decay") or 0)
            found = [watched.info.names.get(id(p)) for p in group["params"] if p.ndim < 2] if amount else []
            names += [name for name in found if name]
            decay = max(decay, amount) if found else decay
    return (names, decay) if names else None


WATCH = [schedule_before_update, schedule_per_update, rates]
