"""The loss's formula, read from the gradient of the logits in the loop itself."""

from __future__ import annotations

import math
from collections.abc import Iterator

from limpid.doctor.checks.alignment import aligned
from limpid.doctor.checks.loss import formula_of
from limpid.doctor.checks.numerics import flushed
from limpid.doctor.checks.optimisation import ascending
from limpid.doctor.checks.padding import padded
from limpid.doctor.finding import Finding
from limpid.doctor.record import Past, StepRecord
from limpid.doctor.watched import Watched


def formula(watched: Watched, record: StepRecord, past: Past) -> Iterator[Finding]:
    """What was taught, with what weight."""
    readings = [record.readings[i] for i in sorted(record.readings)]
    if not readings:
        return
    scale = record.scale if "scaler.scale" in record.events else 1.0
    first = readings[0]
    yield from ascending(first, record.number)
    if first.inverted:
        return
    yield from aligned(first, record.number)
    yield from flushed(first, record.number, watched.scaling)
    if len(readings) == len(record.calls):
        yield from formula_of(readings, record.loss, scale, record.number, False)
    if first.ids is not None and first.complete:
        taught = first.taught.masked_fill(~first.labelled, -1).view(first.ids.shape)
        yield from padded(first.ids, taught, record.calls[0].mask if record.calls else None, record.number, readings)


def level(watched: Watched, record: StepRecord, past: Past) -> Iterator[Finding]:
    if record.level is not None and math.isfinite(record.level[0]):
        past.log_z.append((record.number, record.level[0]))
        yield from drift(*record.level, record.number, past)


def drift(log_z: float, largest: float, kind: str, step: int, past: Past) -> Iterator[Finding]:
    """log Z far from where it began, or moving steadily away."""
    start = past.log_z[0][1]
    far = abs(log_z) > 30 and abs(log_z) > abs(start) + 10
    slope = 0.0
    if len(past.log_z) >= 4:
        (s0, z0), (s1, z1) = past.log_z[-4], past.log_z[-1]
        parts = [(b - a) / max(1, t - s) for (s, a), (t, b) in zip(past.log_z[-4:], past.log_z[-3:], strict=False)]
        slope = (z1 - z0) / max(1, s1 - s0)
        same = all(p > 0.02 for p in parts) or all(p < -0.02 for p in parts)
        if s1 - s0 < 30 or not same or abs(z1 - start) < 5 or abs(z1) < abs(start):
            slope = 0.0
    if not far and abs(slope) <= 0.02:
        return
    spacing = 2.0 ** (math.floor(math.log2(max(abs(largest), 1e-9))) - 7)
    yield Finding(
        rule="logits-drift",
        severity="fault" if abs(log_z) > 100 else "warning",
        step=step,
        where="logits",
        says=f"log Z has drifted from {start:.1f} to {log_z:.1f} in {step - past.log_z[0][0]} steps, which softmax "
        f"does not see: at {largest:.0f} bfloat16 logits have a spacing of {spacing:.2g} (these are {kind}).",
        cause="nothing holds the logits' common level: no decay on the head, no z-loss, a high rate, or a bias that "
        "drifts",
        fix="a z-loss of 1e-4 log² Z, weight decay on the head, or centred logits",
        sure=0.9,
        refuted_by="|log Z| below 30 and level",
        evidence={"start": start, "log_z": log_z, "slope": slope, "largest": largest},
    )


WATCH = [formula, level]
