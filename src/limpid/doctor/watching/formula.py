"""The loss's formula, read from the gradient of the logits in the loop itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from limpid.doctor.checks.alignment import aligned
from limpid.doctor.checks.loss import broadcast, formula_of
from limpid.doctor.checks.numerics import flushed
from limpid.doctor.checks.optimisation import ascending
from limpid.doctor.checks.padding import padded
from limpid.doctor.finding import Finding
from limpid.doctor.step_record import History, LogitLevel, StepRecord
from limpid.doctor.watched import Watched
from limpid.doctor.watching.events import unscaled


def formula(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """What was taught, with what weight."""
    loss_gradients = [record.loss_gradients[i] for i in sorted(record.loss_gradients) if i not in record.dropped]
    if not loss_gradients:
        return
    complete = len(loss_gradients) == len(record.calls) - len(record.dropped)
    scale = record.scale if "scaler.scale" in record.events else 1.0
    total = sum(reading.total_weight for reading in loss_gradients)
    if scale >= 16 and abs(total - 1) < 0.05 and complete:
        yield unscaled(scale, record)
        return
    first = loss_gradients[0]
    yield from ascending(first, record.number)
    if first.inverted:
        return
    taught_tokens = first.ids is not None and first.misfit < 0.3  # not a teacher's probabilities: their loss may be 0
    history.facts["next_token_of"] = first.shape[-1] if taught_tokens else 0
    yield from aligned(first, record.number)
    yield from flushed(first, record.number, watched.scaling)
    if complete:
        yield from formula_of(loss_gradients, record.loss, scale, record.number, False)
    if first.ids is not None and first.complete:
        taught = first.taught.masked_fill(~first.labelled, -1).view(first.ids.shape)
        yield from padded(
            first.ids, taught, record.calls[0].mask if record.calls else None, record.number, loss_gradients
        )


def level(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if record.level is not None and math.isfinite(record.level.log_z):
        history.levels.append((record.number, record.level))
        yield from drift(record.level, record.number, history)


def drift(now: LogitLevel, step: int, history: History) -> Iterator[Finding]:
    """log Z far from where it began, or all logits moving away together: certainty alone moves a few of them."""
    begun, first = history.levels[0]
    # of few classes one is soon certain, and its logit alone is log Z
    far = now.classes >= 64 and abs(now.log_z) > 30 and abs(now.log_z) > abs(first.log_z) + 10
    slope = 0.0
    if len(history.levels) >= 4:
        last = [(s, known.mean) for s, known in history.levels[-4:]]
        parts = [(b - a) / max(1, t - s) for (s, a), (t, b) in itertools.pairwise(last)]
        same = all(p > 0.02 for p in parts) or all(p < -0.02 for p in parts)
        steps = last[-1][0] - last[0][0]
        if steps >= 30 and same and abs(now.mean - first.mean) > 5 and abs(now.log_z) > abs(first.log_z):
            slope = (last[-1][1] - last[0][1]) / steps
    if not far and abs(slope) <= 0.02:
        return
    spacing = 2.0 ** (math.floor(math.log2(max(now.largest, 1e-9))) - 7)
    yield Finding(
        rule="logits-drift",
        severity="fault" if abs(now.log_z) > 100 else "warning",
        step=step,
        where="logits",
        says=f"log Z has drifted from {first.log_z:.1f} to {now.log_z:.1f} in {step - begun} steps, which softmax "
        f"does not see: at {now.largest:.0f} bfloat16 logits have a spacing of {spacing:.2g} (these are {now.format}).",
        cause="nothing holds the logits' common level: no decay on the head, no z-loss, a high rate, or a bias that "
        "drifts",
        fix="a z-loss of 1e-4 log² Z, weight decay on the head, or centred logits",
        sure=0.9,
        refuted_by="|log Z| below 30 and level",
        evidence={"start": first.log_z, "log_z": now.log_z, "slope": slope, "largest": now.largest},
    )


def compared(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if record.spread_out is not None:
        yield broadcast(record.spread_out, record.number)


WATCH = [compared, formula, level]
