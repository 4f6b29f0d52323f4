"""The rate judged by what it does: changes too large for the weights, and changes too small to matter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, median, variance
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.own_updates import own_rule
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step
from limpid.doctor.weights import root_mean_square

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.update_sample import UpdateSample
    from limpid.doctor.watched import Watched

FAMILY = "learning_rate"
PLAYS = "a loss that another model or what the policy draws may raise"
FORGETS = "a rule whose first steps are to forget the weights they begin with, as Frank and Wolfe's"
ADDS = "a rule that adds to a step what a later one takes off, so that weights move and do not go astray"
HARDER = "a task that grows harder, or a rate that is high for a while on purpose, as after a restart"

LEARNING_RATE_TOO_HIGH = Rule(
    "learning-rate-too-high",
    FAMILY,
    detects="A learning rate at which steps move the weights too far and raise the loss they were meant to lower.",
    equation=r"\lVert \Delta w \rVert / \lVert w \rVert > 0.1 \;\text{sustained, and the loss rises}",
    source="Wortsman et al. 2023, section 3.1, arXiv:2309.14322; Cohen et al. 2022, arXiv:2207.14484",
    threshold="matrices that change by more than {ratio:g} of their size (median) at {samples:g} sampled steps in a "
    "row, with a loss {above_best:.0%} and {errors:g} standard errors above its best (on purpose, perhaps, while "
    "less than {lost:.0%} of what was learned is lost), or within {near_start:.0%} of "
    "the start where losses scatter by half of that or less (on purpose, perhaps, where the update is the loop's own), "
    "or {errors:g} errors above it; before step 10 by more "
    "than {at_once:g} with a loss {rise:.0%} above the first; after the rate was raised {raised:g}-fold once more than "
    "{ratio:g} with a loss {above_before:.0%} above that before; before the first step an Adam whose rate is "
    "{adam:g} times the size of the weights. A fault where the change is above {fault:g}, or the rate {adam_fault:g} "
    "times the size",
    thresholds={
        "ratio": Threshold(0.1, "twice the 0.05 of Adam at rate 1e-3 on weights of std 0.02"),
        "samples": Threshold(3, "one large update may be a batch"),
        "above_best": Threshold(0.05, "what is less is no matter"),
        "errors": Threshold(4, "1 in 15,000 of a Gaussian; the best of many medians lies low by itself"),
        "lost": Threshold(0.5, "half of what was learned is lost: more than a harder task or a restart takes"),
        "near_start": Threshold(0.03, "as good as nothing learned in ten steps"),
        "at_once": Threshold(0.5, "two steps replace the weights"),
        "rise": Threshold(0.2, "fresh weights are at most ln V off, and do not rise by themselves"),
        "raised": Threshold(2, "a warm-up raises by less from its third step on"),
        "above_before": Threshold(0.1, "the median of 3 losses scatters by less"),
        "adam": Threshold(1, "Adam's first update is the rate itself for every element"),
        "fault": Threshold(0.3, "three steps replace the weights"),
        "adam_fault": Threshold(3, "the first update alone drowns the weights"),
    },
    cost="norms of updates on a slice of each tensor, on sampled steps",
    suffers=True,
    needs=(Probe.PARAMETERS, Probe.SCHEDULE, Probe.LOSS, Probe.UPDATES, Probe.REPLAY),
    cause="the learning rate is too high",
    refuted_by="a loss that falls at this rate",
    explains=(
        "loss-diverges",
        "loss-spike",
        "gradient-explodes",
        "not-finite",
        "overflow-in-half",
        "logits-drift",
        "clipped-every-step",
        "loss-plateau",
        "scores-overflow-half",
        "attention-scores-large",
        "gradient-vanishes-with-depth",
    ),
    tries_smaller_step=True,
)

LEARNING_RATE_TOO_LOW = Rule(
    "learning-rate-too-low",
    FAMILY,
    detects="A rate at which the whole run cannot move the weights.",
    equation=r"\textstyle\sum_t \lVert \Delta w_t \rVert / \lVert w \rVert \ll 1",
    source="Kingma & Ba 2014, section 2.1, arXiv:1412.6980; IEEE 754-2019",
    threshold="updates below {rounding:.1e} of the weights (median of {samples:g} samples), or below {run:g} of their "
    "size ({fresh:g} of fresh ones) in all planned steps together, each as it would be at the highest rate of the "
    "schedule; with no plan, below {so_far:g} in {steps:g} steps or more at one rate, and a loss that is level",
    thresholds={
        "rounding": Threshold(2.0**-22, "four roundings of float32, 2^-24 each"),
        "run": Threshold(1e-3, "what changes a weight by a thousandth changes no prediction"),
        "fresh": Threshold(1e-2, "fresh weights have all to learn: a hundredth is nothing"),
        "samples": Threshold(3, "one small gradient may be a batch"),
        "steps": Threshold(50, "a fifth of the loss's scatter is seen by then"),
        "so_far": Threshold(1e-4, "to move weights by a tenth would take 50,000 steps"),
    },
    cost="a slice of each tensor, on sampled steps",
    needs=(Probe.UPDATES, Probe.SCHEDULE, Probe.LOSS),
    cause="a learning rate far too small for this optimizer (one that was loaded with an old state, it may be), or a "
    "loss "
    "divided by far too much",
    fix="about 1e-3 for Adam on fresh weights, 1e-5 for fine-tuning; 0.1 for SGD",
    refuted_by="a change of the weights by 1 % in the whole run",
    explains=("weights-never-change", "loss-plateau"),
)


@before_first_step(LEARNING_RATE_TOO_HIGH)
def first_update(exam: Exam) -> Iterator[Finding]:
    """Adam's first update is about η per element: predicted against the size of the matrices.

    What has moments already has had its first update.
    """
    rule, ratios = LEARNING_RATE_TOO_HIGH, []
    states = [getattr(optimizer, "state", {}) for optimizer in exam.optimizers]
    updated = {id(parameter) for state in states for parameter, kept in state.items() if kept and kept.get("step", 1)}
    for _, group in exam.groups:
        top = max([*exam.rates_of(group), float(group.get("lr") or 0.0)])
        for parameter in group["params"] if "betas" in group else ():
            if parameter.ndim >= 2 and parameter.requires_grad and id(parameter) not in updated:
                size = root_mean_square(parameter)
                if size > 0:
                    ratios.append((top / size, exam.info.names.get(id(parameter), "?"), top, size))
    if len(ratios) < 3:
        return
    ratios.sort()
    ratio, name, top, size = ratios[len(ratios) // 2]
    if ratio < rule["adam"]:
        return
    yield rule.finding(
        severity="warning" if ratio < rule["adam_fault"] else "fault",
        where=name,
        says=f"Adam's first updates are about the rate itself: {top:g} per element, {ratio:.1f} times the size of the "
        f"weights (RMS {size:.2g} in {name}); a single step replaces what was learned.",
        cause="the learning rate is too high for weights of this size",
        fix=f"a rate near {0.05 * size:.0e} (5 % of the weights' RMS per step), and a warm-up",
        sure=0.85,
        refuted_by="a loss that falls steadily at this rate",
        meant="weights that begin near 0, and are to be drawn by the first updates",
        evidence={"update_over_weight": ratio, "rate": top, "weight_rms": size},
    )


@on_step(LEARNING_RATE_TOO_HIGH, asks="judged_update")
def at_once(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """In the first steps: weights are replaced, and the loss rises."""
    rule, update = LEARNING_RATE_TOO_HIGH, record.judged_update
    if update is None:
        return
    losses, ratios = history.losses_and(record, 10), _recent_ratios(history)
    if len(ratios) < rule["samples"] or not 3 <= len(losses) < 10:
        return
    if min(ratios[-int(rule["samples"]) :]) > rule["at_once"] and losses[-1] > (1 + rule["rise"]) * losses[0] > 0:
        meant = FORGETS if own_rule(watched) else _plays(record, history)
        yield _too_high(record.number, median(ratios), update, losses[-1], min(losses), losses[0], meant)


@on_step(LEARNING_RATE_TOO_HIGH, asks="judged_update")
def lastingly(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Changes that replace the weights and do not help."""
    rule, update = LEARNING_RATE_TOO_HIGH, record.judged_update
    if update is None:
        return
    ratios = _recent_ratios(history)
    if len(ratios) < rule["samples"] or record.number < 10:
        return
    if not min(ratios[-int(rule["samples"]) :]) > rule["ratio"]:
        return
    losses = history.losses_before(record.number - history.put_back_at)  # those of other weights are no measure
    if len(losses) < 10:
        return
    now, start = median(losses[-5:]), history.losses_before()[0]
    best = min(median(losses[i : i + 5]) for i in range(len(losses) - 4))
    scatter = history.losses.scatter()
    error = 1.2533 * scatter / math.sqrt(5)  # of a median of 5
    worse = now - best > max(rule["above_best"] * best, rule["errors"] * math.sqrt(2) * error)
    known = scatter <= rule["near_start"] * start / 2  # whether a loss says by itself where the run began
    nothing = known and now > (1 - rule["near_start"]) * start
    above = now - start > rule["errors"] * math.hypot(scatter, error)
    if worse or nothing or above or not math.isfinite(now):
        some = worse and not nothing and not above and now - best < rule["lost"] * (start - best)
        waits = nothing and not worse and not above and (history.own_update or own_rule(watched))
        meant = HARDER if some else ADDS if waits else _plays(record, history)
        yield _too_high(record.number, median(ratios), update, now, best, start, meant)


@on_step(LEARNING_RATE_TOO_HIGH, asks="judged_update")
def after_a_rise(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A rate that was more than doubled a few steps ago, and a loss that went back beyond its start.

    Weights that grew tenfold at once make later changes look small: the largest since then counts.
    """
    if record.judged_update is None:
        return
    rule, rates = LEARNING_RATE_TOO_HIGH, history.rates[-10:]
    since = next((i for i in range(1, len(rates)) if rates[-i] > rule["raised"] * rates[-i - 1] > 0), None)
    if since is None:
        return
    losses = history.losses_and(record)
    if not 3 < since < len(losses) - 1:
        return
    before, now = median(losses[max(0, len(losses) - since - 3) : -since + 1]), median(losses[-3:])
    ratios = [(u.median_ratio(), u) for number, u in history.updates if number > record.number - since]
    worse = now > (1 + rule["above_before"]) * before and now > (1 - rule["near_start"]) * losses[0]
    if not ratios or not worse:
        return
    ratio, update = max(ratios, key=lambda pair: pair[0])
    if ratio > rule["ratio"]:
        yield _too_high(record.number, ratio, update, now, min(losses), losses[0], _plays(record, history))


def _plays(record: StepRecord, history: History) -> str | None:
    """Who may mean a loss without a level of its own: another model takes part, or answers are drawn and rewarded."""
    return PLAYS if history.plays or any(micro.is_rewarded for micro in record.micros) else None


def _recent_ratios(history: History) -> list[float]:
    return [update.median_ratio() for _, update in history.updates[-5:]]


def _too_high(
    step: int, ratio: float, update: UpdateSample, now: float, best: float, start: float, meant: str | None
) -> Finding:
    rate = max(update.rates)
    return LEARNING_RATE_TOO_HIGH.finding(
        severity="fault" if ratio > LEARNING_RATE_TOO_HIGH["fault"] or now > start else "warning",
        step=step,
        where=update.names[update.matrices()[0]],
        says=f"each step moves weights by {ratio:.0%} of their size (rate {rate:g}), and the loss is {now:.2f} after "
        f"{best:.2f} at its best and {start:.2f} at the start.",
        meant=meant,
        fix=f"a rate of about {rate * 0.03 / max(ratio, 1e-9):.0e}, and a warm-up",
        sure=0.9,
        evidence={"update_over_weight": ratio, "rate": rate, "loss": now, "best": best, "start": start},
    )


def _level(history: History) -> bool:
    """Whether the last losses are no lower than the first, within two standard errors."""
    losses = history.losses_before()
    first, last = losses[:20], losses[-20:]
    error = math.sqrt((variance(first) + variance(last)) / 20) if len(losses) >= 40 else math.nan
    return fmean(first) - fmean(last) < 2 * error if len(losses) >= 40 else False


@on_step(LEARNING_RATE_TOO_LOW, asks="judged_update")
def next_to_nothing(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """What is left of the run cannot change the weights, or float32 cannot even hold the change."""
    rule = LEARNING_RATE_TOO_LOW
    recent = [update for _, update in history.updates[-int(rule["samples"]) :]]
    if record.judged_update is None or len(recent) < rule["samples"] or any(max(u.rates) == 0 for u in recent):
        return
    wanted = [  # or made, where the rule is none whose formula is known
        max(u.predicted[i], u.step[i], u.change[i]) / u.weight[i]
        for u in recent
        for i in u.matrices()
        if u.weight[i] and u.moves[i]
    ]
    if not wanted:
        return
    now, top = max(recent[-1].rates), max(history.top_rate, watched.peak_rate)
    at_the_top = top / now if now else 1.0  # a schedule may end at 0: the rate is judged by its peak
    lost = median(wanted) * at_the_top < rule["rounding"]
    ratio = max(update.median_ratio() for update in recent)
    whole = (watched.planned or 0) * max(ratio, median(wanted)) * at_the_top
    least = rule["fresh"] if history.began_fresh else rule["run"]
    so_far = record.number * max(ratio, median(wanted))
    idle = not watched.planned and record.number >= rule["steps"] and so_far < rule["so_far"] and _level(history)
    constant = all(rate.changes == 0 for rate in history.group_rates.values())
    if not lost and not 0 < whole < least and not (idle and constant):
        return
    effect = (
        ", a step or two of float32 (6e-8) at most: next to nothing changes."
        if lost
        else f": in all {watched.planned:,} steps together they move by {whole:.1e} of their size."
        if watched.planned
        else f": in {record.number} steps at this constant rate they moved by {so_far:.1e} of their size, and the "
        f"loss did not "
        "fall."
    )
    yield rule.finding(
        severity="fault" if lost else "warning",
        step=record.number,
        where="every parameter group",
        says=f"each update is {median(wanted):.1e} of the size of the weights (rate {now:g}){effect}",
        meant="a short run cut from a long one, or a last careful tuning" if not lost and watched.planned else None,
        sure=0.9,
        evidence={"update_over_weight": median(wanted), "rate": now, "whole_run": whole},
    )
