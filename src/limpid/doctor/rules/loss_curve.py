"""The loss over the steps: spikes, divergence, plateaus, and an evaluation that rises."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, in_log, on_step
from limpid.doctor.streams import WINDOW, Stream, steady

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.logs.table import Curves
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "loss_curve"

LOSS_SPIKE = Rule(
    "loss-spike",
    FAMILY,
    detects="A jump of the loss far outside its own scatter.",
    equation=r"z = (\log L_t - \mathrm{median}_{64}) / (1.48\, \mathrm{MAD}_{64}) > 6",
    source="Chowdhery et al. 2022, section 5.1, arXiv:2204.02311; Kosson et al. 2025, arXiv:2504.02507",
    threshold=f"a notice where robust z over {WINDOW} steps passes {{z:g}} and the loss {{rise:.0%}} of the last 20's "
    "median, unless the rate was just raised; not recovered in 20 steps is loss-diverges",
    thresholds={
        "z": Threshold(6, "1e-9 of a Gaussian; 2.5, right for clipping, would be an alarm on 0.6 % of the steps"),
        "rise": Threshold(1.1, "a loss that hardly scatters any more has spikes of nothing"),
    },
    cost="none: the loss is there",
    needs=(Probe.LOSS, Probe.LOG),
    cause="a batch unlike the others, or a step too far",
    fix="nothing, if it recovers within 20 steps",
    refuted_by="the same batch with an equal loss at other weights",
)

LOSS_DIVERGES = Rule(
    "loss-diverges",
    FAMILY,
    detects="A loss that rises above where it started, or far above its past, and stays.",
    equation=r"\min_{20}\, L_t > L_1 \;\text{or}\; z > 6 \text{ for 20 steps}",
    source="Chowdhery et al. 2022, section 5.1, arXiv:2204.02311",
    threshold="{steps:g} steps in a row outside their own scatter (z as of loss-spike) and {rise:.0%} of the median "
    "before, a warning; or all of them above {start:.0%} of the first loss and most above all of the first five, a "
    "fault; not of a loss that begins at 0 within what its first values differ by, or goes below it: that has no level "
    "to rise from. A task may grow harder "
    "where less than {lost:.0%} of what was learned is lost",
    thresholds={
        "steps": Threshold(20, "spikes of healthy runs recover sooner"),
        "rise": Threshold(1.15, "what is less may be another mixture of data"),
        "lost": Threshold(0.5, "half of what was learned is lost: more than a task that grows harder takes"),
        "start": Threshold(1.02, "nothing is left of what was learned; 2 % and 0.02 nat are the scatter of a batch"),
    },
    cost="none: the loss is there",
    suffers=True,
    needs=(Probe.LOSS, Probe.REPLAY, Probe.LOG),
    cause="the rate is too high for this point of the run, or what is fed changed",
    fix="go back 100 steps before the rise, lower the rate or skip those batches",
    tries_smaller_step=True,
)

HARDER = "a task that grows harder: a curriculum, a weight of the loss that rises, the next of several tasks"
FOLLOWS = "what is learned comes of a copy that follows the model: a loss rises with the values that they learn"
PLAYS = "another model is trained along, and takes part in this loss: it may well rise"
LONGEST = 5000
"""Steps back that a plateau is looked for."""
LOSS_PLATEAU = Rule(
    "loss-plateau",
    FAMILY,
    detects="A loss that does not fall any more while the rate is still high; where it is, against known floors.",
    equation=r"|\text{change between halves}| < 2\, \text{SE over half of the run so far}",
    source="unigram entropy: Shannon 1948",
    threshold="a notice at most, every 100 steps from {steps:g} on, at {rate:.0%} of the peak rate or more: tasks with "
    "a phase transition are flat for most of a healthy run",
    thresholds={
        "steps": Threshold(200, "two halves of fifty are told apart by a quarter of their scatter"),
        "rate": Threshold(0.5, "a low rate explains a level loss"),
    },
    cost="none: the loss is there",
    needs=(Probe.LOSS, Probe.EVENTS),
    cause="a floor (unigram entropy, noise), a phase before a transition, or nothing that learns",
    fix="nothing by itself: see whether other findings explain it",
    refuted_by="a falling loss",
)

OVERFITTING = Rule(
    "overfitting",
    FAMILY,
    detects="An evaluation loss that rises while the training loss falls.",
    equation=r"L_{\text{eval}}(t) > \min_s L_{\text{eval}}(s) \;\text{while}\; L_{\text{train}} \;\text{falls}",
    source="definition; Prechelt 1998, Early stopping - but when?, section 2",
    threshold="the last two evaluations {rise:g} nat or more above the best, and further than {errors:g} times their "
    "scatter, while the training loss has fallen since, in {evaluations:g} evaluations or more",
    thresholds={
        "rise": Threshold(0.02, "2 % of perplexity: what is less nobody would stop for"),
        "errors": Threshold(4, "1 in 15,000 of a Gaussian"),
        "evaluations": Threshold(4, "a best, something before it, and two after it"),
    },
    cost="none: the losses are there",
    meant="early stopping that keeps the best and waits, or a run on to grokking or double descent",
    needs=(Probe.LOG,),
    cause="more epochs over the training data than it bears: its rows are learned by heart",
    fix="stop at the best step or keep its checkpoint; more data, fewer epochs, dropout, a smaller model",
    refuted_by="an evaluation loss that falls again",
)


@in_log(OVERFITTING)
def overfits(curves: Curves) -> Iterator[Finding]:
    rule, losses = OVERFITTING, curves.series.get("loss", [])
    points = [(step, value) for step, value in curves.series.get("eval_loss", []) if math.isfinite(value)]
    if len(points) < rule["evaluations"]:
        return
    best = min(range(len(points)), key=lambda i: points[i][1])
    at, lowest = points[best]
    later = [value for _, value in points[best + 1 :]]
    # scatter of evaluations about the line from each one's neighbour to the other
    bends = [abs(a - 2 * b + c) for (_, a), (_, b), (_, c) in zip(points, points[1:], points[2:], strict=False)]
    scatter = median(bends) / 1.65 if bends else 0.0
    before = [v for s, v in losses if abs(s - at) <= (points[-1][0] - at) / 4 and math.isfinite(v)]
    after = [v for s, v in losses if s > points[-1][0] - (points[-1][0] - at) / 4 and math.isfinite(v)]
    falls = bool(before and after) and median(after) < median(before)
    if len(later) < 2 or not falls or min(later[-2:]) < lowest + max(rule["rise"], rule["errors"] * scatter):
        return
    yield rule.finding(
        severity="warning",
        step=at,
        where="evaluation loss",
        says=f"overfitting: the evaluation loss rises from {lowest:.3f} at step {at:,} to {later[-1]:.3f} while the "
        f"training loss falls from {median(before):.3f} to {median(after):.3f}.",
        sure=0.9,
        evidence={"best": lowest, "at": at, "last": later[-1], "scatter": scatter},
    )


@on_step(LOSS_SPIKE, LOSS_DIVERGES)
def rises(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if history.loss_was_added and history.loss_has_level:
        plays = history.plays or 2 * history.beside > record.number  # whose graph nobody sees, by autograd.grad
        for finding in _judged(history.losses, record.number, history.rate_was_raised):
            meant = PLAYS if plays else FOLLOWS if history.followers.moved() else ""
            yield replace(finding, severity="notice", cause=meant) if meant else finding


@in_log(LOSS_SPIKE, LOSS_DIVERGES)
def rises_in_log(curves: Curves) -> Iterator[Finding]:
    losses, rates = Stream(), dict(curves.series.get("learning_rate", []))
    last: list[float] = []
    points = [(step, value) for step, value in curves.series.get("loss", []) if math.isfinite(value)]
    if any(value < 0 for _, value in points):
        return  # no surprise, and no level to rise from
    for step, value in points:
        if value > 0:
            losses.add(value, LOSS_SPIKE["z"])
            last = [*last[-11:], rates.get(step, math.nan)]
            if losses.begins_at_zero:
                continue
            yield from _judged(losses, step, any(b > 1.5 * a > 0 for a, b in itertools.pairwise(last)))


def _judged(stream: Stream, step: int, rate_was_raised: bool) -> Iterator[Finding]:
    """One stream of losses by its own past: a spike is a notice, what does not recover is a divergence."""
    losses, z = stream.all, stream.z_of_last
    if z > LOSS_SPIKE["z"] and stream.outside == 1 and not rate_was_raised:
        before = median(losses[-21:-1])
        if losses[-1] > LOSS_SPIKE["rise"] * before:
            yield LOSS_SPIKE.finding(
                severity="notice",
                step=step,
                where="loss",
                says=f"the loss jumps to {losses[-1]:.3g} from {before:.3g} (robust z = {min(z, 999):.0f}).",
                sure=0.6,
                evidence={"loss": losses[-1], "before": before, "z": z},
            )
    steps = int(LOSS_DIVERGES["steps"])
    if len(losses) < steps + 5:
        return
    start = losses[0] if len(losses) < 40 else median(losses[:5])
    now = min(losses[-steps:])
    scattered = median(losses[-steps:]) <= max(losses[:5])  # single rows may differ by orders of magnitude
    above = now > LOSS_DIVERGES["start"] * start + 0.02 and len(losses) > 30 and not scattered
    stays = stream.outside >= steps and now > LOSS_DIVERGES["rise"] * median(losses[-60:-steps] or [now])
    if stays or above:
        best = stream.lowest
        lost = (now - best) / max(start - best, 1e-30)  # of what was learned
        yield LOSS_DIVERGES.finding(
            severity="fault" if above else "warning",
            step=step,
            where="loss",
            says=f"the loss has been at {now:.3g} or above for {steps} steps, after {best:.3g} at its best and "
            f"{start:.3g} at the start.",
            meant=None if lost > LOSS_DIVERGES["lost"] else HARDER,
            sure=0.7,
            refuted_by=f"a loss back at {best:.3g}",
            evidence={"loss": now, "best": best, "start": start},
        )


@on_step(LOSS_PLATEAU)
def plateau(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    losses, rates = history.losses.all, history.rates
    if len(losses) < LOSS_PLATEAU["steps"] or len(losses) % 100 or not rates:
        return
    half = losses[-min(len(losses) // 2, LONGEST) :]
    high = rates[-1] >= LOSS_PLATEAU["rate"] * history.top_rate and rates[-1] <= rates[-min(50, len(rates))]
    if high and steady(half):
        yield LOSS_PLATEAU.finding(
            severity="notice",
            step=record.number,
            where="loss",
            says=f"the loss has been level at {median(half):.3g} for {len(half)} steps while the rate is high.",
            sure=0.4,
            evidence={"loss": median(half), "steps": len(half)},
        )
