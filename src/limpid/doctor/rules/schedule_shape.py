"""Schedules that go on beyond what they were made for, or are told the opposite of what they ask."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from statistics import fmean, variance
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "schedule_shape"

RISES_AGAIN = Rule(
    "schedule-rises-again",
    FAMILY,
    detects="A cosine that is stepped beyond its end, where it turns and rises to the full rate again.",
    equation=r"\eta_t = \eta_{\min} + \tfrac12 (\eta_0 - \eta_{\min})(1 + \cos(\pi t / T)),\; t > T",
    source="Loshchilov & Hutter 2016, eq. 5, arXiv:1608.03983; documentation of CosineAnnealingLR",
    threshold="exact: CosineAnnealingLR stepped more than {beyond:g} T_max times",
    thresholds={"beyond": Threshold(1.5, "at T_max the rate is lowest; a few steps more hardly raise it")},
    cost="none",
    meant="a cosine that is to swing: warm restarts without their jump",
    needs=(Probe.SCHEDULE,),
    cause="T_max counts epochs, and the schedule is stepped after every batch",
    fix="T_max = the number of calls of scheduler.step()",
    refuted_by="a rate that stays low",
    explains=("learning-rate-too-high", "loss-spike", "loss-diverges"),
)

PLATEAU_WRONG_WAY = Rule(
    "plateau-the-wrong-way",
    FAMILY,
    detects="ReduceLROnPlateau that takes each improvement for none: its mode is the opposite of its measure.",
    equation=r"\text{mode} = \min,\; m_t \uparrow \;\text{while}\; L_t \downarrow",
    source="documentation of ReduceLROnPlateau; definition",
    threshold="{times:g} measures or more, not one of them better than the first by the schedule's mode, all later "
    "ones better "
    "the other way, while the loss fell; a rate that was lowered",
    thresholds={"times": Threshold(4, "of as many measures without a trend all lie above the first once in five")},
    cost="none",
    meant="a validation loss that rises from its first measure on while the training loss falls",
    needs=(Probe.SCHEDULE, Probe.LOSS),
    cause="mode='min' with an accuracy, which grows as a model gets better; or mode='max' with a loss",
    fix="mode='max' for an accuracy",
    refuted_by="a measure that falls as the model gets better",
    explains=("schedule-ends-early", "loss-plateau"),
)


PLATEAU_OF_BATCHES = Rule(
    "plateau-hears-batches",
    FAMILY,
    detects="ReduceLROnPlateau that is told the loss of every batch: its patience is over by chance, while the loss "
    "falls.",
    equation=r"m_{t-k}, \dots, m_t > \min_{i < t - k} m_i \;\text{while}\; \mathbb{E}\, m_t \downarrow",
    source="documentation of ReduceLROnPlateau: step(val_loss), after validating; patience in epochs",
    threshold="told at every update; {cuts:g} cuts or more, most of which came while the mean of the last measures, as "
    "many as its patience has or {least:g}, was better than that of as many before by {errors:g} standard errors",
    thresholds={
        "cuts": Threshold(2, "one may be of bad luck"),
        "least": Threshold(8, "a mean of fewer says nothing"),
        "errors": Threshold(2, "1 in 40 by chance, and two of them 1 in 1,600"),
    },
    cost="none",
    meant="a rate that is to fall soon, by a measure of each batch",
    needs=(Probe.SCHEDULE, Probe.EVENTS),
    cause="scheduler.step(loss) inside of the loop over batches",
    fix="scheduler.step(validation_loss) once per epoch, or a mean over many batches",
    refuted_by="measures that do not get better any more when the rate is lowered",
    explains=("schedule-ends-early", "loss-plateau", "learning-rate-too-low"),
)


@on_step(RISES_AGAIN)
def beyond_its_end(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    for scheduler in watched.schedulers:
        inner = getattr(scheduler, "scheduler", scheduler)
        if type(inner).__name__ != "CosineAnnealingLR" or not record.has_rates:
            continue
        steps, end = inner.last_epoch, inner.T_max
        rises = any(b > a for a, b in itertools.pairwise(history.rates[-3:]))
        if steps > RISES_AGAIN["beyond"] * end and rises:
            yield RISES_AGAIN.finding(
                severity="warning",
                step=record.number,
                where="CosineAnnealingLR",
                says=f"the schedule has been stepped {steps} times, its T_max is {end}: past its end the cosine rises "
                f"again, and "
                f"the rate swings between {inner.eta_min:g} and {max(inner.base_lrs):g} every {end} steps.",
                sure=0.9,
                evidence={"steps": steps, "t_max": end},
            )


@on_step(PLATEAU_WRONG_WAY)
def taken_for_none(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    for scheduler in watched.schedulers:
        if type(scheduler).__name__ != "ReduceLROnPlateau" or not record.has_rates:
            continue
        measures, losses = history.measures, history.losses_before()
        if len(measures) < 2:
            continue
        sign = 1.0 if scheduler.mode == "min" else -1.0
        worse = [sign * (m - measures[0]) > 0 for m in measures[1:]]
        fell = len(losses) >= 20 and sum(losses[-10:]) < 0.9 * sum(losses[:10])
        if len(worse) >= PLATEAU_WRONG_WAY["times"] and all(worse) and fell and history.rates[-1] < history.top_rate:
            yield PLATEAU_WRONG_WAY.finding(
                severity="warning",
                step=record.number,
                where="ReduceLROnPlateau",
                says=f"mode={scheduler.mode!r}, and the measure went from {measures[0]:.3g} to {measures[-1]:.3g} "
                f"while the loss "
                f"fell: every improvement counts as none, and the rate was lowered to {history.rates[-1]:.2g}.",
                meant=None if scheduler.mode == "max" or _is_a_share(measures, losses) else "",
                sure=0.85,
                evidence={"first": measures[0], "last": measures[-1], "mode": scheduler.mode},
            )


def _is_a_share(measures: Sequence[float], losses: Sequence[float]) -> bool:
    """Whether measures are between 0 and 1 and began far below the loss, as an accuracy does."""
    return min(measures) >= 0 and max(measures) <= 1 and measures[0] < 0.5 * fmean(losses[:10])


@on_step(PLATEAU_OF_BATCHES)
def cut_while_falling(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, rates, measures = PLATEAU_OF_BATCHES, history.rates, history.measures
    for scheduler in watched.schedulers:
        lowered, told = len(rates) > 1 and rates[-1] < rates[-2], abs(len(measures) - len(rates)) <= 1
        if type(scheduler).__name__ != "ReduceLROnPlateau" or not record.has_rates or not (lowered and told):
            continue
        size = int(max(scheduler.patience + 1, rule["least"]))
        cuts = [i for i in range(1, len(rates)) if rates[i] < rates[i - 1] and i >= 2 * size]
        better = [_better(measures[i - 2 * size : i], scheduler.mode) > rule["errors"] for i in cuts]
        if len(cuts) >= rule["cuts"] and sum(better) > len(cuts) / 2:
            yield rule.finding(
                severity="warning",
                step=record.number,
                where="ReduceLROnPlateau",
                says=f"it is told a measure at every update, and has lowered the rate {len(cuts)} times, "
                f"{sum(better)} of them while the mean of the last {size} measures was getting better: one batch is "
                f"seldom better than the best of all before. The rate is {rates[-1]:.2g} of {history.top_rate:.2g}.",
                sure=0.85,
                evidence={"cuts": len(cuts), "better": sum(better), "window": size},
            )


def _better(measures: Sequence[float], mode: str) -> float:
    """By how many standard errors the mean of the later half is better than that of the earlier."""
    half = len(measures) // 2
    earlier, later = measures[:half], measures[half:]
    error = math.sqrt((variance(earlier) + variance(later)) / half)
    gain = fmean(earlier) - fmean(later) if mode == "min" else fmean(later) - fmean(earlier)
    return gain / error if error else 0.0
