"""What can be told from curves alone, and what cannot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from statistics import median

from limpid.doctor.finding import Finding
from limpid.doctor.judging import judged_loss
from limpid.doctor.ranking import ranked
from limpid.doctor.records import Curves
from limpid.doctor.streams import Stream

UNSEEN = {
    "data": "labels, padding, ids and repeats need a batch: doctor.preflight(batch), or watch the run",
    "graph": "causality, cut gradients, tied weights and positions need the model",
    "optimisation": "what the optimizer holds, and the order of its calls, need the loop: limpid.watch(model, "
    "optimizer)",
    "loss": "the formula of the loss needs its logits and labels",
    "distributed": "ranks are compared while they train",
}
"""What no curve shows, by family."""


def diagnose(curves: Curves) -> list[Finding]:
    """Every finding that these curves support."""
    found: dict[str, Finding] = {}
    for check in (broke, level, spikes, gradients, schedule, scaling, restarts, too_low, overfitting):
        for finding in check(curves):
            old = found.get(finding.rule)
            if old is None or (old.severity == "notice" and finding.severity != "notice"):
                found[finding.rule] = finding
    return ranked(list(found.values()))


def unchecked(curves: Curves) -> dict[str, str]:
    """What could not be checked, and why."""
    missing = {
        name: f"no {name.replace('_', ' ')} in the record"
        for name in ("grad_norm", "learning_rate", "eval_loss", "loss_scale")
        if name not in curves.series
    }
    return missing | UNSEEN


def broke(curves: Curves) -> Iterator[Finding]:
    """The first number that is none, and what went before it."""
    for name in ("loss", "grad_norm"):
        points = curves.series.get(name, [])
        at = next((i for i, (_, v) in enumerate(points) if not math.isfinite(v)), None)
        zero = (
            name == "loss"
            and at is None
            and len(points) > 3
            and points[-1][1] == 0.0
            and any(v > 0.1 for _, v in points)
        )
        if zero:
            at = next(i for i, (_, v) in enumerate(points) if v == 0.0 and all(w == 0.0 for _, w in points[i:]))
        if at is None:
            continue
        step = points[at][0]
        scaled = name == "grad_norm" and bool(curves.series.get("loss_scale"))
        if scaled and any(math.isfinite(v) for _, v in points[at + 1 :]):
            continue  # a skipped step of loss scaling
        norms = [v for s, v in curves.series.get("grad_norm", []) if s < step and math.isfinite(v)]
        before = [v for s, v in curves.series.get("loss", []) if s < step and math.isfinite(v)]
        rise = norms[-1] / max(median(norms[-50:-5]), 1e-30) if len(norms) > 12 else math.nan
        fit = before[-1] / min(before) if before and min(before) > 0 else math.nan
        lead = ""
        if rise > 5:
            lead = f"; the gradient norm had grown {rise:.0f}-fold just before: instability (rate, scores, "
            "logits), not one number"
        elif before and fit > 1.3:
            lead = f"; the loss had risen from {min(before):.2f} to {before[-1]:.2f} before: it diverged first"
        elif before:
            lead = f"; nothing in loss{' or gradient norm' if norms else ''} announced it: one batch, or one "
            "overflow, not a slow drift"
        words = (
            f"0.0 from step {step} on, which is how a NaN is often logged"
            if zero
            else f"{points[at][1]} at step {step}"
        )
        yield Finding(
            rule="not-finite",
            severity="fault",
            step=step,
            where=name.replace("_", " "),
            says=f"the {name.replace('_', ' ')} is {words}{lead}.",
            cause="a number beyond its format, 0/0, or a divergence",
            fix="watch the run (limpid.watch): it opens the step and names the operation",
            sure=0.9,
            refuted_by="a finite value at this step in the run itself",
            evidence={"step": step, "norm_rise": rise, "last_loss": before[-1] if before else math.nan},
        )
        return


def level(curves: Curves) -> Iterator[Finding]:
    """The first loss against ln V: a sum, a factor k, or a loss that is not one of language."""
    losses = curves.values("loss")
    if not losses or not math.isfinite(losses[0]) or curves.steps[0] > 20:
        return
    first = losses[0]
    if curves.vocab:
        expected = math.log(curves.vocab)
        ratio = first / expected
        whole = round(ratio)
        if ratio > 1.8 and abs(ratio / whole - 1) < 0.05 and whole <= 64:
            yield _factor(
                "accumulation-not-divided",
                first,
                expected,
                ratio,
                f"{whole} micro-batches (or ranks) are added, not averaged",
                0.8,
            )
        elif ratio > 4:
            yield _factor(
                "loss-summed", first, expected, ratio, "a sum over tokens, or weights that start far too large", 0.6
            )
    elif first > 40:
        yield _factor(
            "loss-summed", first, math.log(262144), first / math.log(262144), "a sum over tokens or micro-batches", 0.6
        )


def _factor(rule: str, first: float, expected: float, ratio: float, why: str, sure: float) -> Finding:
    return Finding(
        rule=rule,
        severity="warning",
        step=None,
        where="loss",
        says=f"the first loss is {first:.1f}, {ratio:.3g} times ln V = {expected:.2f}: {why}.",
        cause=why,
        fix="log and minimise the mean over the labels of the whole step",
        sure=sure,
        refuted_by=f"a first loss near {expected:.2f}",
        evidence={"first_loss": first, "ln_vocab": expected, "ratio": ratio},
    )


def spikes(curves: Curves) -> Iterator[Finding]:
    stream = Stream()
    rates = dict(curves.series.get("learning_rate", []))
    last: list[float] = []
    points = curves.series.get("loss", [])
    flat = [v for _, v in points[-20:]]
    if len(flat) == 20 and len(set(flat)) == 1 and flat[0] not in (0.0,):
        yield Finding(
            rule="weights-never-change",
            severity="warning",
            step=points[-20][0],
            where="loss",
            says=f"the loss is exactly {flat[0]:g} for the last 20 entries: the weights do not change, or the "
            "number is not new.",
            cause="a rate of 0, a stale optimizer, a frozen model, or a logger that repeats",
            fix="print a parameter before and after a step",
            sure=0.6,
            refuted_by="two different losses",
            evidence={"loss": flat[0]},
        )
    for step, value in points:
        if not math.isfinite(value) or value <= 0:
            continue
        z = stream.add(value, 6.0)
        last = [*last[-11:], rates.get(step, math.nan)]
        rose = any(b > 1.5 * a > 0 for a, b in itertools.pairwise(last))
        yield from judged_loss(stream.all, stream.outside, z, step, rose)


def gradients(curves: Curves) -> Iterator[Finding]:
    stream = Stream()
    hard = 0
    for step, value in curves.series.get("grad_norm", []):
        if not math.isfinite(value) or value <= 0:
            continue
        z = stream.add(value, 8.0)
        usual = math.exp(median(stream.values)) if stream.values else value
        if z > 8 and len(stream.all) > 40 and sum(v > 10 * usual for v in stream.recent(8)) >= 5:
            yield Finding(
                rule="gradient-explodes",
                severity="warning",
                step=step,
                where="gradient norm",
                says=f"the gradient norm is {value:.3g}, {value / usual:.0f} times its usual {usual:.3g}, in "
                "most of 8 entries.",
                cause="the run is about to diverge, or the loss changed scale",
                fix="clip, lower the rate, look at the batch",
                sure=0.7,
                refuted_by=f"a norm back near {usual:.3g}",
                evidence={"norm": value, "usual": usual},
            )
        if curves.max_grad_norm and len(stream.all) > 20:
            hard = hard + 1 if value > 10 * curves.max_grad_norm else 0
            if hard == 50:
                yield Finding(
                    rule="clipped-every-step",
                    severity="notice",
                    step=step,
                    where="gradient norm",
                    says=f"clipping to {curves.max_grad_norm:g} has cut the gradient by more than 10 in 50 "
                    "entries running.",
                    cause="a loss that is a sum, or a limit for another batch size",
                    fix="a mean as loss, or another limit",
                    sure=0.8,
                    refuted_by="steps that are not clipped",
                    evidence={"norm": value},
                )


def schedule(curves: Curves) -> Iterator[Finding]:
    points = [(s, v) for s, v in curves.series.get("learning_rate", []) if math.isfinite(v)]
    if len(points) < 10:
        return
    rates = [v for _, v in points]
    top = max(rates)
    if top == 0:
        yield Finding(
            rule="learning-rate-zero",
            severity="fault",
            step=points[0][0],
            where="learning rate",
            says="the learning rate is 0 in every entry.",
            cause="rate or schedule give 0",
            fix="give the schedule a rate to scale",
            sure=0.95,
            refuted_by="a rate above 0",
            evidence={"entries": len(rates)},
        )
        return
    last = max(i for i, v in enumerate(rates) if v >= 0.01 * top)
    idle = (points[-1][0] - points[last][0]) / max(1, points[-1][0] - points[0][0])
    if idle > 0.25:
        end, total = points[last][0], curves.max_steps or points[-1][0]
        ratio = total / max(end, 1)
        guess = (
            f": 1/{round(ratio)} of the run, as if it were stepped {round(ratio)} times per update"
            if abs(ratio / round(ratio) - 1) < 0.06 and round(ratio) > 1
            else ""
        )
        yield Finding(
            rule="schedule-per-micro-batch" if guess else "schedule-ends-early",
            severity="warning",
            step=end,
            where="learning rate",
            says=f"the rate is below 1 % of its peak from step {end} of {total} on{guess}.",
            cause="a schedule made for another number of steps, or stepped per micro-batch or per process",
            fix="step it once per optimizer update, with the number of updates",
            sure=0.8 if guess else 0.9,
            refuted_by="a rate above 1 % of the peak for most of the run",
            evidence={"end": end, "total": total, "idle": idle},
        )
    elif (
        rates[-1] == top
        and rates[0] < 0.5 * top
        and rates == sorted(rates)
        and curves.max_steps
        and points[-1][0] >= curves.max_steps
    ):
        yield Finding(
            rule="schedule-never-peaks",
            severity="warning",
            step=points[-1][0],
            where="learning rate",
            says=f"the rate rises to the very end ({top:.1e}): the warm-up is longer than the run.",
            cause="warm-up in micro-batches, samples, or for another number of processes",
            fix="warm-up in updates",
            sure=0.8,
            refuted_by="a rate that falls before the end",
            evidence={"top": top},
        )


def scaling(curves: Curves) -> Iterator[Finding]:
    points = curves.series.get("loss_scale", [])
    if len(points) < 12:
        return
    values = [v for _, v in points]
    falls = [i for i in range(1, len(values)) if values[i] < values[i - 1]]
    longest = max((_run(falls, i) for i in falls), default=0)
    if values[-1] < 1 or longest > 10:
        yield Finding(
            rule="loss-scale-collapsed",
            severity="fault",
            step=points[-1][0],
            where="loss scale",
            says=f"the loss scale fell to {values[-1]:g} ({longest} halvings in a row): gradients are not "
            "finite at any scale.",
            cause="an activation overflows float16, whatever the loss is scaled by",
            fix="bfloat16, or find the overflow by watching",
            sure=0.9,
            refuted_by="a scale that recovers",
            evidence={"scale": values[-1], "halvings": longest},
        )


def _run(falls: list[int], start: int) -> int:
    length = 0
    while start + length in falls:
        length += 1
    return length


def restarts(curves: Curves) -> Iterator[Finding]:
    """Where step numbers go back or jump ahead: do loss and rate go on from where they were?"""
    rates = dict(curves.series.get("learning_rate", []))
    order = curves.order
    gaps = [b - a for a, b in itertools.pairwise(order)]
    if len(gaps) < 20:
        return
    usual = median(gaps)
    for i, gap in enumerate(gaps):
        if 0 < gap <= 3 * usual:
            continue
        before, after = order[i], order[i + 1]
        old, new = (
            [v for _, v in curves.series.get("loss", [])][max(0, i - 19) : i + 1],
            [v for _, v in curves.series.get("loss", [])][i + 1 : i + 6],
        )
        if len(old) < 10 or len(new) < 3:
            continue
        middle = median(old)
        spread = 1.4826 * median(abs(v - middle) for v in old) or 1e-3
        jump = (median(new) - middle) / spread
        rate = rates.get(after, math.nan) / rates[before] if rates.get(before) else math.nan
        if jump > 6 or rate > 3 or rate < 0.2:
            what = (
                f"loss {middle:.3g} to {median(new):.3g}"
                if jump > 6
                else f"rate {rates[before]:.1e} to {rates.get(after, math.nan):.1e}"
            )
            yield Finding(
                rule="resume-is-not-one",
                severity="warning",
                step=after,
                where="resume",
                says=f"step numbers go from {before} to {after}, and the run does not go on as it was: {what}.",
                cause="moments, schedule, data position or random state were not restored",
                fix="save and load optimizer, schedule, scaler, random state and data position",
                sure=0.7,
                refuted_by="the same loss at the first step after the resume",
                evidence={"before": before, "after": after, "z": jump, "rate_ratio": rate},
            )
            return


def too_low(curves: Curves) -> Iterator[Finding]:
    losses, evals = curves.values("loss"), curves.values("eval_loss")
    if len(losses) < 20 or (curves.vocab or 1000) < 64:
        return
    low = median(losses[-10:])
    if 0 < low < 0.3 * math.log(2) and (not evals or min(evals) < 2 * low + 0.05):
        yield Finding(
            rule="loss-below-floor",
            severity="warning",
            step=curves.steps[-1],
            where="loss",
            says=f"training{' and evaluation' if evals else ''} loss of {low:.3f} nats per token is below what "
            "text allows "
            f"({0.3 * math.log(2):.2f}): copying, a leak, or a set that is learned by heart.",
            cause="labels not shifted, no causal mask, or the same rows again and again",
            fix="doctor.preflight(batch) tells them apart",
            sure=0.6,
            refuted_by="an honest evaluation with this loss",
            evidence={"loss": low},
        )


def overfitting(curves: Curves) -> Iterator[Finding]:
    points, losses = curves.series.get("eval_loss", []), curves.values("loss")
    if len(points) < 4 or len(losses) < 20:
        return
    values = [v for _, v in points if math.isfinite(v)]
    if len(values) < 4:
        return
    best = min(range(len(values)), key=lambda i: values[i])
    if (
        best < len(values) - 2
        and values[-1] > values[best] + 0.1
        and losses[-1] < median(losses[len(losses) // 2 - 2 : len(losses) // 2 + 3])
    ):
        yield Finding(
            rule="batch-repeats",
            severity="notice",
            step=points[best][0],
            where="evaluation loss",
            says=f"the evaluation loss rises from {values[best]:.3f} (step {points[best][0]}) to "
            f"{values[-1]:.3f} while the training "
            "loss falls: rows are learned by heart.",
            cause="many epochs over little data, or the same batch",
            fix="stop at the best step, more data, or check for repeats",
            sure=0.5,
            refuted_by="an evaluation loss that falls again",
            evidence={"best": values[best], "last": values[-1]},
        )
