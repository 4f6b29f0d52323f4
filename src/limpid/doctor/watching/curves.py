"""Curves, last of all: spikes, divergence, plateau, explosion, judged by the run's own robust statistics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from statistics import median

from limpid.doctor.finding import Finding
from limpid.doctor.judging import judged_loss
from limpid.doctor.step_record import History, StepRecord
from limpid.doctor.streams import steady
from limpid.doctor.watched import Watched


def loss(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    value = record.loss
    if value is None or not math.isfinite(value):
        return
    if value <= 0:  # no cross-entropy: its logarithm, on which streams are judged, does not exist
        return
    z = history.losses.add(value, 6.0)
    yield from judged_loss(history.losses.all, history.losses.outside, z, record.number, _rate_rose(history))


def _rate_rose(history: History) -> bool:
    """Whether the rate was raised within the last 10 steps: a bump then is the schedule's."""
    recent = history.rates[-12:]
    return any(b > 1.5 * a > 0 for a, b in itertools.pairwise(recent))


def gradient(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    norm = record.norm
    if norm is None or not math.isfinite(norm):
        return
    if "scaler.unscale_" not in record.events and watched.scaling:
        norm /= record.scale or 1.0
    z = history.norms.add(norm, 8.0) if norm > 0 else 0.0
    recent = history.norms.recent(8)
    if z > 8 and len(history.norms.all) > 40 and not _rate_rose(history):
        usual = math.exp(median(history.norms.values))
        if sum(value > 10 * usual for value in recent) >= 5:
            yield Finding(
                rule="gradient-explodes",
                severity="warning",
                step=record.number,
                where="gradient",
                says=f"the gradient norm is {norm:.3g}, {norm / usual:.0f} times its usual {usual:.3g}, in "
                f"{len(recent)} steps.",
                cause="the run is about to diverge, or the loss changed scale",
                fix="clip, lower the rate, look at the batch",
                sure=0.7,
                refuted_by=f"a norm back near {usual:.3g}",
                evidence={"norm": norm, "usual": usual, "z": z},
            )
    limit = record.clipped_to
    if limit is not None and record.number > 20:
        history.clipped_hard = history.clipped_hard + 1 if norm > 10 * limit else 0
        if history.clipped_hard == 50:
            yield Finding(
                rule="clipped-every-step",
                severity="notice",
                step=record.number,
                where="gradient",
                says=f"clipping to {limit:g} has cut the gradient by more than 10 in each of 50 steps (norm now "
                f"{norm:.3g}).",
                cause="a loss that is a sum, a limit for another batch size, or an unstable model",
                fix="a mean as loss, or a limit near the usual norm",
                sure=0.8,
                refuted_by="steps that are not clipped",
                evidence={"norm": norm, "limit": limit},
            )


def plateau(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    losses = history.losses.all
    if len(losses) < 200 or len(losses) % 100:
        return
    half = losses[len(losses) // 2 :]
    warm = (
        history.rates
        and history.rates[-1] >= 0.5 * max(history.rates)
        and history.rates[-1] <= history.rates[-min(50, len(history.rates))]
    )
    if warm and steady(half):
        yield Finding(
            rule="loss-plateau",
            severity="notice",
            step=record.number,
            where="loss",
            says=f"the loss has been level at {median(half):.3g} for {len(half)} steps while the rate is high.",
            cause="a floor (unigram entropy, noise), a phase before a transition, or nothing that learns",
            fix="nothing by itself: see whether other findings explain it",
            sure=0.4,
            refuted_by="a falling loss",
            evidence={"loss": median(half), "steps": len(half)},
        )


WATCH = [loss, gradient, plateau]
