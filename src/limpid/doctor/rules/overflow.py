"""Numbers that are none: overflow, and the operation where the first one arises."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, at_break, before_first_step, in_log
from limpid.doctor.rules.attention import LARGEST_HALF

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.logs.table import Curves
    from limpid.doctor.replay.nan_replay import BrokenStep

FAMILY = "overflow"

OVERFLOW_IN_HALF = Rule(
    "overflow-in-half",
    FAMILY,
    detects="A value beyond the largest number of a half-precision format.",
    equation=r"|x| > 65504 \;\text{(float16)},\; 3.4 \cdot 10^{38} \;\text{(bfloat16)}",
    source="IEEE 754-2019, table 3.5; transformers#5651",
    threshold="the format's largest number, {limit:g} of float16; exact: the operation has finite inputs and an "
    "infinite output, and at a break its value in float64 is finite and beyond it",
    thresholds={"limit": LARGEST_HALF},
    cost="one pass op by op before the first step, and when it breaks",
    suffers=True,
    needs=(Probe.FORWARD, Probe.ATTENTION, Probe.GRADIENT_NORM, Probe.REPLAY),
    cause="sums or squares of many numbers formed in float16",
    fix="form them in float32, or use bfloat16",
    explains=(
        "not-finite",
        "loss-diverges",
        "loss-spike",
        "gradient-explodes",
        "gradient-cut",
        "step-without-gradients",
        "epsilon-dominates",
    ),
)

NOT_FINITE = Rule(
    "not-finite",
    FAMILY,
    detects="A loss, gradient or weight that is not a number, with the operation that made it first.",
    equation=r"\text{first op with finite inputs and a non-finite output}",
    source="definition",
    threshold="exact; in a log also a loss that is 0 from some step to the end. What led to it there: a gradient norm "
    "{rise:g} times its median of before, or a loss {fit:g} times its lowest",
    thresholds={
        "rise": Threshold(5, "beyond the scatter of gradient norms, a factor of 2 or so"),
        "fit": Threshold(1.3, "beyond the scatter of batches"),
    },
    cost="the gradient norm is read anyway; one pass op by op when it breaks",
    suffers=True,
    needs=(Probe.BACKWARD, Probe.LOSS, Probe.GRADIENT_NORM, Probe.REPLAY, Probe.LOG),
    cause="a number beyond its format, 0/0, or a divergence",
    refuted_by="a finite result of the same operation",
    explains=("loss-diverges", "loss-spike", "gradient-explodes", "loss-plateau"),
)

CAUSES = {
    "log": "the logarithm of 0 or of a negative number",
    "div": "a division by 0",
    "sqrt": "the root of a negative number",
    "rsqrt": "1/√0",
    "pow": "a power that overflows",
    "exp": "an exponential that overflows",
    "reciprocal": "1/0",
    "nll_loss_forward": "a mean over no label",
}
"""Why an operation of finite numbers is not finite, by the beginning of its name."""


@before_first_step(OVERFLOW_IN_HALF)
def overflows(exam: Exam) -> Iterator[Finding]:
    """Infinities that later operations make finite again, so that nothing but the learning shows them."""
    operation = exam.attention.overflowed
    if operation is not None:
        limit = OVERFLOW_IN_HALF["limit"]
        yield OVERFLOW_IN_HALF.finding(
            severity="fault",
            where=operation,
            says=f"{operation} of finite float16 numbers is infinite: a value went beyond {limit:.0f}.",
            refuted_by=f"a largest value below {limit:.0f}",
        )


@before_first_step(NOT_FINITE)
def first_loss_is_none(exam: Exam) -> Iterator[Finding]:
    if exam.call is None and exam.trial is not None and not math.isfinite(exam.trial.loss):
        yield exam.opened(exam.trial.loss)


@at_break(OVERFLOW_IN_HALF)
def value_outgrew_format(broken: BrokenStep) -> Iterator[Finding]:
    if broken.origin is not None and broken.overflowed:
        name = str(broken.origin.dtype).removeprefix("torch.")
        fix = "bfloat16, float32 for this operation, or smaller weights"
        yield broken.overflow(OVERFLOW_IN_HALF, f"({broken.origin.name})", f"values outgrew {name}", fix)


@at_break(NOT_FINITE)
def weights_before(broken: BrokenStep) -> Iterator[Finding]:
    odd = broken.bad_parameters
    if odd:
        count = sum(odd.values())
        yield NOT_FINITE.finding(
            severity="fault",
            step=broken.step,
            where=next(iter(odd)),
            says=f"{broken.what}: {count:,} elements of {len(odd)} parameters are not finite already before the "
            f"forward pass ({', '.join(list(odd)[:3])}).",
            cause="the update before wrote them",
            fix="look at the step before: its gradients, ε, rate and loss scale",
            sure=0.9,
            evidence={"tensors": list(odd)[:16], "elements": count},
        )


@at_break(NOT_FINITE)
def first_operation(broken: BrokenStep) -> Iterator[Finding]:
    origin = broken.origin
    if origin is None:
        return
    cause = next((text for word, text in CAUSES.items() if origin.name.startswith(word)), "")
    cause = cause or f"{origin.name} of numbers up to {origin.largest:.3g}"
    yield NOT_FINITE.finding(
        severity="fault",
        step=broken.step,
        where=origin.module,
        says=f"{broken.what}: the first operation with finite inputs and a result that is not is {origin.name} in "
        f"{origin.module}{' (backward)' if origin.backward else ''}: inputs {', '.join(origin.inputs[:2])} up to "
        f"{origin.largest:.3g}.",
        cause=cause + (", in the backward pass" if origin.backward else ""),
        fix="guard this operation (ε under a root or in a denominator, log_softmax for a log of probabilities, clamp)",
        sure=0.9,
        evidence=broken.evidence,
    )


@at_break(NOT_FINITE)
def after_the_forward_pass(broken: BrokenStep) -> Iterator[Finding]:
    if broken.replayed:
        yield NOT_FINITE.finding(
            severity="fault",
            step=broken.step,
            where="loss" if broken.logits_finite else "model",
            says=f"{broken.what}, though the forward pass, repeated, gives finite logits: it arises in the loss, or "
            "after the backward pass.",
            cause="the loss function, the loss scale, or something that changes gradients",
            fix="look at the inputs of the loss: log of 0, a division by a count of 0, an overflow in its format",
            sure=0.6,
        )


@at_break(NOT_FINITE)
def not_replayed(broken: BrokenStep) -> Iterator[Finding]:
    why, fix = "the call of the model was not seen", "let the doctor see the forward pass: watch(model) before the loop"
    if broken.info.sharded:
        why = "each process holds a part of the parameters, and none can make the step alone"
        fix = "make the step again in one process, watched"
    elif broken.recorded is not None and broken.obstacle:
        why, fix = broken.obstacle, "make what is in the way a part of the model, or leave it out for one run"
    yield NOT_FINITE.finding(
        severity="fault",
        step=broken.step,
        where="loss",
        says=f"{broken.what}.",
        cause=f"unknown: {why}",
        fix=fix,
        sure=0.3,
    )


@in_log(NOT_FINITE)
def breaks_in_log(curves: Curves) -> Iterator[Finding]:
    """The first number that is none, and what went before it."""
    for name in ("loss", "grad_norm"):
        at = _first_bad(curves, name)
        if at is None:
            continue
        points = curves.series[name]
        step, value = points[at]
        words = f"{value} at step {step}"
        if value == 0:
            words = f"0.0 from step {step} on, which is how a NaN is often logged"
        lead, rise, last = _lead(curves, step)
        yield NOT_FINITE.finding(
            severity="fault",
            step=step,
            where=name.replace("_", " "),
            says=f"the {name.replace('_', ' ')} is {words}{lead}.",
            fix="watch the run (limpid.watch): it opens the step and names the operation",
            meant="a loss that can be 0, as a margin that every row keeps" if value == 0 else None,
            sure=0.9,
            refuted_by="a finite value at this step in the run itself",
            evidence={"step": step, "norm_rise": rise, "last_loss": last},
        )
        return


def _first_bad(curves: Curves, name: str) -> int | None:
    """Index of the first value that is not finite, or of the first of zeros to the end of a loss."""
    values = [value for _, value in curves.series.get(name, [])]
    at = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
    if at is None and name == "loss" and len(values) > 3 and values[-1] == 0.0 and any(v > 0.1 for v in values):
        return max(i for i, value in enumerate(values) if value != 0.0) + 1
    scaled = name == "grad_norm" and bool(curves.series.get("loss_scale"))
    if at is not None and scaled and any(math.isfinite(value) for value in values[at + 1 :]):
        return None  # a skipped step of loss scaling
    return at


def _lead(curves: Curves, step: int) -> tuple[str, float, float]:
    """What led to a break of the loss: in words, how much the gradient norm had grown, and the last loss."""
    all_norms = [(s, v) for s, v in curves.series.get("grad_norm", []) if s <= step]
    norms = [v for s, v in all_norms if s < step and math.isfinite(v)]
    bad = next(((s, v) for s, v in all_norms if not math.isfinite(v)), None)
    before = [v for s, v in curves.series.get("loss", []) if s < step and math.isfinite(v)]
    rise = norms[-1] / max(median(norms[-50:-5]), 1e-30) if len(norms) > 12 else math.nan
    if not before:
        return "", rise, math.nan
    fit = before[-1] / min(before) if min(before) > 0 else math.nan
    said = (
        f"nothing in loss{' or gradient norm' if norms else ''} announced it: one batch, or one overflow, not a slow "
    )
    said += "drift"
    if bad is not None and bad[0] < step:
        said = (
            f"the gradient norm was {bad[1]} at step {bad[0]} already: an update with such a gradient writes numbers "
        )
        said += "that are none into the weights (clip_grad_norm_ with error_if_nonfinite, or skip it)"
    elif rise > NOT_FINITE["rise"]:
        said = f"the gradient norm had grown {rise:.0f}-fold just before: instability (rate, scores, logits), not one "
        said += "number"
    elif fit > NOT_FINITE["fit"]:
        said = f"the loss had risen from {min(before):.2f} to {before[-1]:.2f} before: it diverged first"
    return f"; {said}", rise, before[-1]
