"""Curves of the loss: its first value, its spikes, its floor, its distance from the evaluation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from statistics import median

from limpid.doctor.finding import Finding
from limpid.doctor.judging import judged_loss
from limpid.doctor.logs.table import Curves
from limpid.doctor.streams import Stream


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
            says=f"the loss is exactly {flat[0]:g} for the last 20 entries: the weights do not change, or the number "
            "is not new.",
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
            says=f"training{' and evaluation' if evals else ''} loss of {low:.3f} nats per token is below what text "
            f"allows ({0.3 * math.log(2):.2f}): copying, a leak, or a set that is learned by heart.",
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
            says=f"the evaluation loss rises from {values[best]:.3f} (step {points[best][0]}) to {values[-1]:.3f} "
            "while the training loss falls: rows are learned by heart.",
            cause="many epochs over little data, or the same batch",
            fix="stop at the best step, more data, or check for repeats",
            sure=0.5,
            refuted_by="an evaluation loss that falls again",
            evidence={"best": values[best], "last": values[-1]},
        )
