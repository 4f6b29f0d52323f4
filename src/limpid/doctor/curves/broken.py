"""Numbers that are none: a loss or norm that is not finite, a loss scale that collapsed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from limpid.doctor.finding import Finding
from limpid.doctor.logs.table import Curves


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
            says=f"the loss scale fell to {values[-1]:g} ({longest} halvings in a row): gradients are not finite at "
            "any scale.",
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
