"""Where logits stand as a whole, which softmax does not see, and number formats do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "logits"

LOGITS_DRIFT = Rule(
    "logits-drift",
    FAMILY,
    detects="Logits that drift away as a whole: softmax does not see it, number formats do.",
    equation=r"\log Z = \log \textstyle\sum_v e^{z_v},\; |\log Z| > 30 \text{ or } |\bar z'| > 0.02 / \text{step}",
    source="Chowdhery et al. 2022, section 5, arXiv:2204.02311; Wortsman et al. 2023, section 3.1.2",
    threshold="|log Z| above {log_z:g} and {rise:g} above its start, of {classes:g} classes or more; or a mean logit "
    "that moves by over {slope:g} per step, the same way, for {steps:g} steps and by {whole:g} in all, with "
    "log Z by {level:g} or more; a fault above {fault:g}. Or gradients that "
    "add up to less than -{term:g} of a label's weight and fit w (p - e) + c p within "
    "{fit:g}, of {few:g} classes or more and |log Z| above {none:g}: a term that rewards log Z",
    thresholds={
        "log_z": Threshold(30, "there bfloat16 logits have a spacing of 1/8 nat"),
        "rise": Threshold(10, "loaded weights may start high"),
        "classes": Threshold(64, "of few classes one is soon certain, and its logit alone is log Z"),
        "slope": Threshold(0.02, "30 in 1500 steps"),
        "steps": Threshold(30, "certainty alone moves a few logits, and not for long"),
        "whole": Threshold(5, "bfloat16 still resolves 1/32 nat at it"),
        "level": Threshold(1, "log-probabilities have log Z = 0 to rounding, however far the unlikely ones fall"),
        "fault": Threshold(100, "spacing 1/2 nat: probabilities are good to a factor of 1.6"),
        "term": Threshold(0.01, "gradients in half precision carry 2^-8 each"),
        "fit": Threshold(0.05, "eight roundings of half precision, and a little"),
        "none": Threshold(1e-2, "log Z of log-probabilities, to the rounding of half precision"),
        "few": Threshold(8, "of few classes two unknowns explain any gradient"),
    },
    cost="log Z on 256 positions on sampled steps",
    meant="logits in float32 whose common level nobody needs to hold, or an energy model's log Σ exp z",
    needs=(Probe.LOGIT_LEVEL, Probe.BACKWARD, Probe.LOSS_GRADIENT),
    cause="nothing holds the logits' common level: no decay on the head, no z-loss, a high rate, or a bias that drifts",
    fix="a z-loss of 1e-4 log² Z, weight decay on the head, or centred logits",
    refuted_by="|log Z| below 30 and level",
    explains=("loss-spike", "loss-diverges", "overflow-in-half", "loss-below-floor"),
)


LOGITS_BOUNDED = Rule(
    "logits-bounded",
    FAMILY,
    detects="Logits that cannot come far enough apart, whatever is learned: the loss has a floor above 0.",
    equation=r"L \ge \ln(1 + (V - 1)\, e^{-\Delta}),\; \Delta = \max z - \min z",
    source="softmax of V - 1 logits at one end and the target's at the other; Gemma Team 2024, section 2, "
    "arXiv:2408.00118 (soft caps of 30)",
    threshold="logits that stop growing while gains and matrices behind the blocks grow ten-thousandfold, under a "
    "cross-entropy of these logits whose floor is {floor:g} nat or more; a fault from {fault:g} on; nobody means "
    "{lost:.0%} of ln V",
    thresholds={
        "floor": Threshold(0.05, "5 % of perplexity: caps in use leave 1e-6"),
        "fault": Threshold(0.5, "a floor that any text's entropy is not far above"),
        "lost": Threshold(0.5, "of ln V: half of all that there is to learn is out of reach"),
    },
    cost="three forward passes of a few rows before the first step",
    meant="a cap that keeps probabilities soft, or cosines with a low scale",
    needs=(Probe.PARAMETERS, Probe.FORWARD, Probe.LOSS_GRADIENT),
    cause="a tanh, a clamp, a sigmoid or a soft cap on the logits that is too low for this vocabulary",
    fix="no squashing, or a cap c with (V - 1) exp(-2c) far below 1: 15 or more",
    refuted_by="logits that grow with the head",
    explains=("loss-plateau", "loss-never-falls"),
)


@before_first_step(LOGITS_BOUNDED)
def bounded(exam: Exam) -> Iterator[Finding]:
    from limpid.doctor.logit_reach import floor, reach

    for first in exam.loss_gradients[:1]:
        if not first.is_of_language or first.misfit > LOGITS_BOUNDED["floor"]:
            continue
        span, classes = reach(exam), first.shape[-1]
        least = 0.0 if span is None else floor(classes, span)
        if span is None or least < LOGITS_BOUNDED["floor"]:
            continue
        yield LOGITS_BOUNDED.finding(
            severity="fault" if least >= LOGITS_BOUNDED["fault"] else "warning",
            where="logits",
            says=f"logits come at most {span:.3g} apart, however large the weights: of {classes:,} classes the loss "
            f"cannot fall below {least:.2f} nats (a guess that knows nothing has {math.log(classes):.2f}).",
            meant=None if least >= LOGITS_BOUNDED["lost"] * math.log(classes) else "",
            sure=0.95,
            evidence={"span": span, "floor": least, "classes": classes},
        )


@on_step(LOGITS_DRIFT, asks="level")
def drift(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """log Z far from where it began, or all logits moving away together: certainty alone moves a few of them."""
    rule, now = LOGITS_DRIFT, record.level
    if now is None or not math.isfinite(now.log_z):
        return
    begun, first = history.levels[0]
    high = now.classes >= rule["classes"] and abs(now.log_z) > rule["log_z"]
    far = high and abs(now.log_z) > abs(first.log_z) + rule["rise"]
    slope = _slope(history)
    if not far and abs(slope) <= rule["slope"]:
        return
    spacing = 2.0 ** (math.floor(math.log2(max(now.largest, 1e-9))) - 7)
    yield rule.finding(
        severity="fault" if abs(now.log_z) > rule["fault"] else "warning",
        step=record.number,
        where="logits",
        says=f"log Z has drifted from {first.log_z:.1f} to {now.log_z:.1f} in {record.number - begun} steps, which "
        f"softmax does not see: at {now.largest:.0f} bfloat16 logits have a spacing of {spacing:.2g} (these are "
        f"{now.format}).",
        sure=0.9,
        evidence={"start": first.log_z, "log_z": now.log_z, "slope": slope, "largest": now.largest},
    )


def _slope(history: History) -> float:
    """Of the mean logit per step, where the last four looks at it all went the same way; else 0."""
    rule, levels = LOGITS_DRIFT, history.levels
    if len(levels) < 4:
        return 0.0
    first, now = levels[0][1], levels[-1][1]
    last = [(step, level.mean) for step, level in levels[-4:]]
    parts = [(b - a) / max(1, t - s) for (s, a), (t, b) in itertools.pairwise(last)]
    same = all(part > rule["slope"] for part in parts) or all(part < -rule["slope"] for part in parts)
    steps = last[-1][0] - last[0][0]
    if not same or steps < rule["steps"] or not abs(now.mean - first.mean) > rule["whole"]:
        return 0.0
    away = abs(now.log_z) - abs(first.log_z) > rule["level"]
    return (last[-1][1] - last[0][1]) / steps if away else 0.0


def grows_with_log_z(gradient: LossGradient, step: int | None) -> Iterator[Finding]:
    """A term of the loss that rewards larger logits; asked with the other formulas of a loss."""
    rule = LOGITS_DRIFT
    if gradient.zeros > 1 - 1.5 / gradient.shape[-1] and abs(gradient.log_z) < rule["none"]:
        return  # of log-probabilities the label's alone has a gradient
    fits = gradient.shape[-1] >= rule["few"] and gradient.misfit > 1e-3 and gradient.misfit_log_z < rule["fit"]
    if gradient.row_sum < -rule["term"] and fits:
        yield rule.finding(
            severity="warning",
            step=step,
            where="loss",
            says=f"the loss holds a term {gradient.row_sum:.2g}·log Z, which rewards larger logits without end: "
            "softmax does not see it, number formats do.",
            cause="a z-loss with the wrong sign, or a term outside the log-probabilities",
            fix="+1e-4·log² Z, or no such term",
            meant="an energy-based model, of which log Σ exp z is the logarithm of a density",
            sure=0.9,
            refuted_by="gradients of each position that add up to 0",
            evidence={"coefficient": gradient.row_sum},
        )
