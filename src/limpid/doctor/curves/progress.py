"""Curves of what drives the run: gradient norm, learning rate, step numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from statistics import median

from limpid.doctor.finding import Finding
from limpid.doctor.logs.table import Curves
from limpid.doctor.streams import Stream


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
                says=f"the gradient norm is {value:.3g}, {value / usual:.0f} times its usual {usual:.3g}, in most of "
                "8 entries.",
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
                    says=f"clipping to {curves.max_grad_norm:g} has cut the gradient by more than 10 in 50 entries "
                    "running.",
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
