"""Loss scaling: multiplied and divided by the same number, never collapsed, and there where float16 needs it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, in_log, on_step

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.logs.table import Curves
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "loss_scaling"

LOSS_NOT_SCALED = Rule(
    "loss-not-scaled",
    FAMILY,
    detects="Gradients are divided by the loss scale, but the loss was not multiplied by it.",
    equation=r"g^{\text{used}} = g / s",
    source="definition; the order of scale, backward and step",
    threshold="exact: no scale before the scaler's step, {steps:g} steps in a row; or weights of the tokens that add "
    "up to 1 in the gradient within {near:g}, where the scale is {scale:g} or more",
    thresholds={
        "steps": Threshold(2, "the first step of a loop may be set-up"),
        "near": Threshold(0.05, "gradients in half precision carry 2^-8 each, and the scale is far from 1"),
        "scale": Threshold(16, "below it a factor of accumulation may hide in the sum"),
    },
    cost="none: event counters, and gradients that are read anyway",
    needs=(Probe.EVENTS, Probe.LOSS_GRADIENT),
    cause="loss.backward() where scaler.scale(loss).backward() is meant",
    fix="scaler.scale(loss).backward()",
    explains=("epsilon-dominates", "loss-plateau", "update-not-as-predicted", "learning-rate-too-low"),
)

NEVER_UNSCALED = Rule(
    "gradients-never-unscaled",
    FAMILY,
    detects="Gradients that are multiplied by the loss scale, and used as they are.",
    equation=r"g^{\text{used}} = s\, g",
    source="definition; documentation of torch.amp",
    threshold="exact: the loss is scaled, and the update made without the scaler's step or unscale_, {steps:g} steps "
    "in a "
    "row",
    thresholds={"steps": Threshold(2, "the first step of a loop may be set-up")},
    cost="none: event counters",
    needs=(Probe.EVENTS,),
    cause="optimizer.step() where scaler.step(optimizer) is meant",
    fix="scaler.step(optimizer); scaler.update()",
    refuted_by="a gradient that is divided by the scale before the update",
    explains=("learning-rate-too-high", "loss-diverges", "gradient-explodes", "clipped-every-step", "not-finite"),
)

LOSS_SCALE_COLLAPSED = Rule(
    "loss-scale-collapsed",
    FAMILY,
    detects="Loss scaling skips step after step: gradients are not finite at any scale.",
    equation=r"s_{t+1} = s_t / 2 \;\text{at every non-finite gradient}",
    source="Micikevicius et al. 2017, section 3.2, arXiv:1710.03740",
    threshold="more than {in_a_row:g} skips in a row, or more than {share:.0%} of at least {many:g} steps after step "
    "{begun:g}; in a log that many halvings in a row, or a scale below {least:g} at the end",
    thresholds={
        "in_a_row": Threshold(10, "2^10 of scale cure any overflow of scaling alone"),
        "share": Threshold(0.05, "growth every 2000 steps skips 0.05 %: a hundredfold"),
        "many": Threshold(100, "at the usual share the chance of six skips in them is 1e-10"),
        "begun": Threshold(100, "the first scale is too high on purpose"),
        "least": Threshold(1, "gradients that have to be made smaller do not underflow"),
    },
    cost="none: the scaler counts",
    suffers=True,
    needs=(Probe.EVENTS, Probe.LOG),
    cause="an activation overflows float16, whatever the loss is scaled by, or a loss is NaN",
    fix="bfloat16, or find the overflow: the first bad operation is named when the loss itself breaks",
    refuted_by="an update that is not skipped",
    explains=("loss-plateau",),
)

FLUSHED_TO_ZERO = Rule(
    "half-gradients-flush-to-zero",
    FAMILY,
    detects="Gradients below the smallest float16, without loss scaling: they become 0.",
    equation=r"p/N < 2^{-25} = 2.98 \cdot 10^{-8}",
    source="Micikevicius et al. 2017, section 3.2, arXiv:1710.03740",
    threshold="all entries are numbers of float16, and a warning from {share:.0%} of the logit gradients exactly 0, a "
    "fault above {most:.0%}, where {tiny:.0%} of them or more are predicted by p/N below 2^-25 and logits are small: "
    "up to {largest:g}, with std {spread:g}",
    thresholds={
        "share": Threshold(0.1, "probabilities are positive, so in exact arithmetic none is 0"),
        "most": Threshold(0.5, "most of the vocabulary is not pushed down"),
        "tiny": Threshold(0.5, "else something other than the format makes zeros"),
        "largest": Threshold(40, "below half of 103, where exp underflows in float32 itself"),
        "spread": Threshold(6, "40 is then beyond six standard deviations"),
    },
    cost="one backward pass, before the first step",
    needs=(Probe.BACKWARD, Probe.LOSS_GRADIENT),
    cause="gradients pass through float16 without loss scaling",
    fix="scale the loss (torch.amp.GradScaler) or use bfloat16",
    refuted_by="the share of exact zeros with the loss multiplied by 65,536: about 0",
    explains=("loss-plateau",),
)


@on_step(LOSS_NOT_SCALED)
def divided_alone(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A scaler that divides gradients of a loss it has not multiplied."""
    events = record.events
    divided = "scaler.step" in events or "scaler.unscale_" in events
    missing = watched.scaling and divided and "backward" in events and "scaler.scale" not in events
    by_hand = record.all_passes_read and abs(record.sum_of_weights / watched.scale - 1) < LOSS_NOT_SCALED["near"]
    missing = missing and not by_hand
    if history.in_a_row(LOSS_NOT_SCALED.slug, missing and watched.scale > 1) == LOSS_NOT_SCALED["steps"]:
        yield _not_scaled(watched.scale, record)


@on_step(NEVER_UNSCALED)
def used_as_they_are(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    events = record.events
    scaled = record.updated and "scaler.scale" in events and watched.scale > 1
    used = scaled and "scaler.step" not in events and "scaler.unscale_" not in events
    if history.in_a_row(NEVER_UNSCALED.slug, used) == NEVER_UNSCALED["steps"]:
        yield NEVER_UNSCALED.finding(
            severity="fault",
            step=record.number,
            where="optimizer",
            says=f"the loss is multiplied by {watched.scale:,.0f}, and the optimizer steps without the scaler: "
            f"gradients are "
            f"never unscaled, {watched.scale:,.0f} times too large.",
            meant="a loop that divides gradients by the scale itself, or a rule that their size does not change",
            evidence={"scale": watched.scale, "order": record.events[:12]},
        )


@on_step(LOSS_NOT_SCALED, asks="loss_was_not_scaled")
def weights_without_scale(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if record.loss_was_not_scaled:
        yield _not_scaled(record.scale_of_loss, record)


def _not_scaled(scale: float, record: StepRecord) -> Finding:
    return LOSS_NOT_SCALED.finding(
        severity="fault",
        step=record.number,
        where="scaler",
        says=f"backward starts from the loss itself, but its gradients are divided by {scale:,.0f} before the update.",
        refuted_by=f"weights of the step's tokens that add up to {scale:,.0f} in the gradient",
        evidence={"scale": scale, "order": record.events[:12]},
    )


@on_step(LOSS_SCALE_COLLAPSED)
def skipped(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule = LOSS_SCALE_COLLAPSED
    if not watched.scaling:
        return
    history.skips.append(record.skipped)
    running = history.in_a_row(rule.slug, record.skipped)
    late = list(history.skips)[int(rule["begun"]) :] if record.number <= 400 else list(history.skips)
    share = sum(late) / len(late) if len(late) >= rule["many"] else 0.0
    if running > rule["in_a_row"] or share > rule["share"]:
        yield rule.finding(
            severity="fault",
            step=record.number,
            where="scaler",
            says=f"{running} steps in a row skipped, {share:.0%} of the last {len(late)} after step "
            f"{rule['begun']:g}; loss scale {record.scale:g}: gradients are not finite at any scale.",
            sure=0.95,
            evidence={"scale": record.scale, "skipped_share": share},
        )


@in_log(LOSS_SCALE_COLLAPSED)
def halved_in_log(curves: Curves) -> Iterator[Finding]:
    rule, points = LOSS_SCALE_COLLAPSED, curves.series.get("loss_scale", [])
    if len(points) < 12:
        return
    values = [value for _, value in points]
    falls = itertools.groupby(b < a for a, b in itertools.pairwise(values))
    longest = max((len(list(run)) for fell, run in falls if fell), default=0)
    if values[-1] < rule["least"] or longest > rule["in_a_row"]:
        yield rule.finding(
            severity="fault",
            step=points[-1][0],
            where="loss scale",
            says=f"the loss scale fell to {values[-1]:g} ({longest} halvings in a row): gradients are not finite at "
            "any scale.",
            fix="bfloat16, or find the overflow by watching",
            sure=0.9,
            refuted_by="a scale that recovers",
            evidence={"scale": values[-1], "halvings": longest},
        )


@before_first_step(FLUSHED_TO_ZERO)
def flushed(exam: Exam) -> Iterator[Finding]:
    for gradient in exam.loss_gradients[:1]:
        yield from _flushed(gradient, None, exam.scaling)


@on_step(FLUSHED_TO_ZERO, asks="downhill")
def flushed_in_step(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    for gradient in record.downhill[:1]:
        yield from _flushed(gradient, record.number, watched.scaling)


def _flushed(gradient: LossGradient, step: int | None, scaled: bool) -> Iterator[Finding]:
    """Logit gradients that are exactly 0 although probabilities are not."""
    rule, zeros = FLUSHED_TO_ZERO, gradient.zeros
    if scaled or not gradient.of_half or zeros < rule["share"] or gradient.tiny < rule["tiny"] * zeros:
        return
    # a softmax of float32 logits underflows below exp(-103); such a spread explains zeros without any half format
    if gradient.largest > rule["largest"] or gradient.logit_std > rule["spread"]:
        return
    labels, vocab = max(1, gradient.labels), gradient.shape[-1]
    uniform = 1 / (labels * vocab)
    yield rule.finding(
        severity="fault" if zeros > rule["most"] else "warning",
        step=step,
        where="gradient of the logits",
        says=f"{zeros:.0%} of the logit gradients are exactly 0: p/N is about {uniform:.1e} ({labels:,} labels, "
        f"{vocab:,} words), float16 ends at 6.0e-8, and the loss is not scaled.",
        meant=None if zeros > rule["most"] else "float16 as it is, where what is small may be lost",
        sure=0.95,
        evidence={"zeros": zeros, "uniform_gradient": uniform, "labels": labels, "vocab": vocab},
    )
