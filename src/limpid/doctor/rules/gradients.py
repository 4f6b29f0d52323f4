"""The gradient itself: whose it is, whether it is one, which way it points, how long it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.libraries import is_library
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, in_log, on_step
from limpid.doctor.streams import WINDOW, Stream

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.logs.table import Curves
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.micro_batches import Micro
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "gradients"

GRADIENTS_NOT_CLEARED = Rule(
    "gradients-not-cleared",
    FAMILY,
    detects="Gradients of earlier steps are still there when the next backward pass adds to them.",
    equation=r"g_t^{\text{used}} = \sum_{s \le t} g_s",
    source="definition; the order of zero_grad, backward and step",
    threshold="exact: a gradient that is neither None nor 0 when the first backward pass of a step begins",
    cost="the norm of three small tensors in the first ten steps, of all on sampled ones",
    needs=(Probe.LEFT_OVER,),
    cause="zero_grad is missing, or clears other parameters than those that train",
    fix="optimizer.zero_grad(set_to_none=True) once per step, before its first backward",
    meant="gradients kept in .grad on purpose: a momentum that fades there, dual averaging",
    refuted_by="gradients that are None or 0 before backward",
    explains=(
        "gradient-explodes",
        "clipped-every-step",
        "loss-diverges",
        "learning-rate-too-high",
        "loss-spike",
        "loss-plateau",
    ),
)

STEP_WITHOUT_GRADIENTS = Rule(
    "step-without-gradients",
    FAMILY,
    detects="The optimizer steps although no parameter it holds has a gradient: cleared too early, or stale.",
    equation=r"g = \text{None or 0 for every } p \text{ at the step}",
    source="definition; event order",
    threshold="exact: None or 0 everywhere, {steps:g} steps in a row",
    thresholds={"steps": Threshold(2, "one batch may truly have nothing to teach")},
    cost="one look per step",
    needs=(Probe.EVENTS,),
    cause="gradients are cleared between backward and step, or the optimizer holds other tensors than the model",
    fix="zero_grad before backward; build the optimizer from the final model",
    refuted_by="one gradient at the step",
    explains=("weights-never-change", "loss-plateau", "epsilon-dominates"),
)

NOTHING_TO_LEARN = Rule(
    "nothing-to-learn",
    FAMILY,
    detects="A step of a policy whose gradient is exactly 0, because its rewards tell no answer from another.",
    equation=r"A_i = (r_i - \bar r) / \sigma_r = 0 \text{ for every answer } i",
    source="Shao et al. 2024, section 4.1, arXiv:2402.03300; Yu et al. 2025, section 3.2, arXiv:2503.14476",
    threshold="exact: a gradient of 0, and an advantage or a mask of 0 at every token; said once, as a notice",
    cost="one look at a step without gradient",
    needs=(Probe.EVENTS, Probe.GRADIENT_NORM),
    cause="all answers to a prompt are equally good, or all equally bad",
    fix="more answers per prompt (num_generations), prompts that the model answers sometimes, or a reward with more "
    "steps between wrong and right",
    refuted_by="an advantage other than 0",
)

GRADIENT_ASCENT = Rule(
    "gradient-ascent",
    FAMILY,
    detects="Steps that raise the loss of their own batch, however small they are: the sign is wrong.",
    equation=r"(L(\theta + d) - L(\theta)) / (g \cdot d),\; g \cdot d > 0",
    source="first-order expansion",
    threshold="exact where the gradient of the logits is that of -log p, negated, at every label of a step with one "
    "weight and no rewards, or maximize=True is set; of updates: "
    "cosine with the gradient above {cosine:g} in {samples:g} of {samples:g} sampled steps up to step {early:g}, above "
    "{later:g} after it; not where it goes against the mean gradient that the optimizer keeps",
    thresholds={
        "cosine": Threshold(0.1, "momentum of a gradient that turned around leaves less"),
        "samples": Threshold(3, "one may be momentum"),
        "early": Threshold(20, "two memories of a momentum of 0.9: nothing old is carried along yet"),
        "later": Threshold(0.3, "momentum carries past gradients along, whose mean cosine stays below it"),
    },
    cost="a slice of each tensor before and after the update, on sampled steps",
    needs=(Probe.PARAMETERS, Probe.BACKWARD, Probe.LOSS_GRADIENT, Probe.UPDATES),
    cause="a sign: -loss, maximize=True, or a log-probability taken for a loss",
    fix="minimise the loss",
    meant="unlearning, an adversary's step, or an objective that is to rise (ELBO, reward)",
    refuted_by="a negative gradient at the target of each position",
    explains=(
        "loss-diverges",
        "loss-spike",
        "gradient-explodes",
        "not-finite",
        "learning-rate-too-high",
        "loss-below-floor",
    ),
)

NOT_THE_GRADIENT = Rule(
    "gradient-is-not-the-gradient",
    FAMILY,
    detects="A hand-written, fused or compiled backward pass whose gradient is not that of its forward pass.",
    equation=r"\frac{L(\theta + \varepsilon d) - L(\theta - \varepsilon d)}{2 \varepsilon\, g \cdot d} = 1",
    source="central difference along a direction; pytorch#114109",
    threshold="a ratio further than {off:g} from 1 for each of four ε, every one a fifth of the one before; of logits "
    "in half precision {half:g} or more, or 1/{half:g} or less, and a notice; not where a surrogate is in it, nor "
    "where the step is lost in the rounding of the weights, as of a loss that cancels to 0",
    thresholds={
        "off": Threshold(0.1, "the error of a central difference falls 25-fold with each ε; a ratio that does not"),
        "half": Threshold(2, "logits in a half format round by 2^-8, so that only a factor of 2 is news"),
    },
    cost="up to eight forward passes and one backward pass, before the first step",
    needs=(Probe.BACKWARD,),
    cause="a backward pass (hand-written, fused, compiled, or with a part of the graph detached) is not the "
    "derivative of its forward pass",
    fix="compare gradients with the plain implementation of each custom operation (torch.autograd.gradcheck)",
    meant="stop-gradients: semi-gradient TD, self-distillation, phantom or reversed gradients",
    refuted_by="a ratio within 0.9 … 1.1 for a smaller step",
    explains=("gradient-ascent", "loss-plateau", "loss-diverges"),
)

SHARPER = "a likelihood that gets sharper while it falls: noise or a width that is learned"
"""Who may mean a gradient that grows."""

GRADIENT_EXPLODES = Rule(
    "gradient-explodes",
    FAMILY,
    detects="A gradient norm that leaves its own past far behind and stays there.",
    equation=r"z = (\log \lVert g \rVert - \mathrm{median}) / (1.48\, \mathrm{MAD}) > 8",
    source=f"Zeng et al. 2022 (GLM-130B), section 3.3, arXiv:2210.02414; median and MAD, window {WINDOW}",
    threshold="robust z above {z:g}, and {times:g} times the usual norm in {of_eight:g} of 8 steps, after {known:g}",
    thresholds={
        "z": Threshold(8, "10^5 steps of 20 runs at under 1 % false alarms need p < 5e-9, z = 5.8 of a Gaussian"),
        "times": Threshold(10, "clipping divides it out; what is less is hardly felt"),
        "of_eight": Threshold(5, "a majority: one batch alone is a spike"),
        "known": Threshold(40, "twice what a median of the past needs to be good to a quarter of the scatter"),
    },
    cost="none: the norm is there",
    suffers=True,
    needs=(Probe.GRADIENT_NORM, Probe.REPLAY, Probe.LOG),
    cause="the run is about to diverge, or the loss changed scale",
    fix="clip, lower the rate, look at the batch",
    explains=("loss-spike", "loss-diverges", "clipped-every-step"),
    tries_smaller_step=True,
)


def is_known(watched: Watched) -> bool:
    """Whether all optimizers are a library's: what one's own makes of gradients only its author knows."""
    return all(is_library(type(optimizer).__module__) for optimizer in watched.optimizers)


@on_step(GRADIENTS_NOT_CLEARED, asks="left_over")
def left_over(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if not record.left_over or not math.isfinite(record.left_over):
        return
    first = history.norms.all[0] if history.norms.all else math.nan
    left = [watched.info.names.get(parameter, "?") for parameter in record.left_in]
    trained = len(watched.held)
    some = record.sampled and len(left) < trained
    where = f" of {len(left)} of {trained} tensors ({', '.join(left[:3])})" if some else ""
    yield GRADIENTS_NOT_CLEARED.finding(
        severity="fault",
        step=record.number,
        where=left[0] if some else "optimizer",
        says=f"gradients{where} of earlier steps are still there when backward begins: step {record.number} uses the "
        f"sum of {record.number} batches (norm {record.norm or math.nan:.3g}; the first batch alone {first:.3g}).",
        meant=None if not record.left_changed and is_known(watched) else "",
        evidence={"largest_norm_left": record.left_over, "first_norm": first, "tensors": left[:32]},
    )


@on_step(STEP_WITHOUT_GRADIENTS)
def nothing_to_step_with(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule = STEP_WITHOUT_GRADIENTS
    reached = record.loss == 0  # a margin that every row of the batch keeps
    missing = record.no_gradients and record.updated and not record.has_nothing_to_learn and not reached
    if history.in_a_row(rule.slug, missing) == rule["steps"]:
        yield rule.finding(
            severity="fault",
            step=record.number,
            where="optimizer",
            says="the optimizer steps, but none of its parameters has a gradient other than 0.",
            meant=None
            if is_known(watched)
            else "an optimizer that needs no gradient: evolution, differences of losses (MeZO)",
            evidence={"order": record.events[:12]},
        )


@before_first_step(NOTHING_TO_LEARN)
def rewards_will_be_equal(exam: Exam) -> Iterator[Finding]:
    if exam.gradient_norms and exam.has_nothing_to_learn:
        yield _nothing_to_learn(exam.micros, None)


@on_step(NOTHING_TO_LEARN)
def rewards_are_equal(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if record.has_nothing_to_learn:
        yield _nothing_to_learn(record.micros, record.number)


def _nothing_to_learn(micros: Sequence[Micro], step: int | None) -> Finding:
    masked = all(micro.without_targets for micro in micros)
    says = "no answer has a reward or is learned from" if masked else "all rewards of every group were equal"
    return NOTHING_TO_LEARN.finding(
        severity="notice",
        step=step,
        where="rewards",
        says=f"{says}: nothing to learn in this step.",
        cause="rewards of None, or answers that were all broken off" if masked else "",
        evidence={"masked": masked},
    )


def ascends(where: str, says: str, step: int | None = None, meant: str | None = None) -> Finding:
    return GRADIENT_ASCENT.finding(severity="fault", step=step, where=where, says=f"{says}.", meant=meant, sure=0.95)


def raised(gradients: Sequence[LossGradient], step: int | None, knows: bool) -> Iterator[Finding]:
    """The gradients of the logits of a whole step have the sign of a loss that is raised.

    knows   whether the model has learned something that it may be to forget
    """
    if gradients and all(gradient.inverted for gradient in gradients):
        says = "the gradient of the logits is that of -log p, negated: every step makes the targets less likely"
        yield ascends("loss", says, step, "" if knows else None)


def maximises(watched: Watched) -> bool:
    """Whether the optimizers were told to go along the gradient, as of a likelihood."""
    return bool(watched.groups) and all(group.get("maximize") for _, group in watched.groups)


@before_first_step(GRADIENT_ASCENT)
def ascent(exam: Exam) -> Iterator[Finding]:
    if not any(micro.is_rewarded for micro in exam.micros) and not maximises(exam):
        yield from raised(exam.loss_gradients, None, not exam.fresh)
    for index, group in exam.groups:
        if group.get("maximize") and exam.loss_gradients and not exam.loss_gradients[0].inverted:
            says = "the optimizer maximises (maximize=True) a cross-entropy"
            yield ascends(f"parameter group {index}", says, None, None if exam.fresh and maximises(exam) else "")


@on_step(GRADIENT_ASCENT)
def loss_is_raised(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rewarded = any(micro.is_rewarded for micro in record.micros)  # what earned little is to become rarer
    history.taught_downhill |= any(not one.inverted for one in record.taught)
    again = history.in_a_row(GRADIENT_ASCENT.slug, bool(record.taught)) >= GRADIENT_ASCENT["samples"]
    knows = history.taught_downhill or not history.began_fresh or not again
    if record.all_passes_read and record.taught and maximises(watched):
        history.raises_likelihood = all(one.inverted for one in record.taught)
    elif record.all_passes_read and not rewarded:
        yield from raised(record.taught, record.number, knows)


@on_step(GRADIENT_ASCENT, asks="judged_update")
def updates_ascend(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, samples = GRADIENT_ASCENT, int(GRADIENT_ASCENT["samples"])
    if record.judged_update is None or history.raises_likelihood:
        return
    recent = [update for _, update in history.updates[-samples:]]
    cosines = [update.cosine for update in recent]
    if len(cosines) < samples or not min(cosines) > rule["cosine"]:  # a cosine of NaN says nothing
        return
    if any((update.cosine_of_mean or 0.0) < 0 for update in recent):  # what is remembered outweighs this batch
        return
    if record.number <= rule["early"] or min(cosines) > rule["later"]:
        yield rule.finding(
            severity="fault",
            step=record.number,
            where="optimizer",
            says="updates go along the gradient, not against it (cosine "
            f"{', '.join(f'{c:.2f}' for c in cosines)}): each step raises the loss of its own batch.",
            cause="a sign in the optimizer (maximize=True), or a hook that negates gradients",
            fix="w ← w - lr·g",
            meant=None if is_known(watched) and not any(group.get("maximize") for _, group in watched.groups) else "",
            sure=0.9,
            refuted_by="a negative cosine of gradient and update",
            evidence={"cosines": cosines},
        )


@before_first_step(NOT_THE_GRADIENT, GRADIENT_ASCENT)
def slope(exam: Exam) -> Iterator[Finding]:
    """The observed change of the loss along its gradient over the predicted one."""
    rule = NOT_THE_GRADIENT
    from limpid.adjoints.adjoint import Verdict

    ratio = None if exam.call is not None or exam.trial is None else exam.trial.slope
    if exam.trial is None or ratio is None or abs(ratio - 1) < rule["off"]:
        return
    if exam.processes > 1:  # the gradient is the mean over all of them, the loss this one's alone
        exam.skipped.note(rule.slug, f"{exam.processes} processes share one gradient: examine one alone")
        return
    if any(one.verdict is Verdict.SURROGATE for one in exam.trial.adjoints):
        exam.skipped.note(rule.slug, "a gradient in it is a surrogate, which is that of no loss")
        return
    if abs(ratio + 1) < rule["off"]:
        yield ascends("gradients", "along its own gradient the loss falls as steeply as the gradient says it rises")
        return
    halves = any(gradient.half for gradient in exam.loss_gradients)
    asked = any(one.verdict is Verdict.WRONG for one in exam.trial.adjoints)
    by_hand = any(one.verdict is Verdict.UNCHECKED for one in exam.trial.adjoints)
    if halves and 1 / rule["half"] < ratio < rule["half"]:
        return
    yield rule.finding(
        severity="notice" if halves or asked else "warning",  # of the backward pass by hand it is asked already
        where="loss",
        says=f"along its own gradient the loss changes {ratio:.3g} times as much as the gradient says.",
        meant=None if by_hand else "",
        sure=0.8,
        evidence={"ratio": ratio},
    )


@on_step(GRADIENT_EXPLODES)
def explodes(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if record.true_norm and not history.rate_was_raised:
        for found in _explodes(history.norms, record.number, "gradient", "steps"):
            lowest = history.loss_went_below_zero or _at_its_lowest(history.losses_and(record))
            yield replace(found, meant=SHARPER) if lowest else found


def _at_its_lowest(losses: Sequence[float]) -> bool:
    """Whether the last losses, while the norm grew, are the lowest of the run."""
    size = int(GRADIENT_EXPLODES["of_eight"])
    now, before = losses[-size:], losses[: -2 * size]
    return len(before) >= size and median(now) < min(
        median(before[i : i + size]) for i in range(len(before) - size + 1)
    )


@in_log(GRADIENT_EXPLODES)
def explodes_in_log(curves: Curves) -> Iterator[Finding]:
    norms = Stream()
    for step, value in curves.series.get("grad_norm", []):
        if math.isfinite(value) and value > 0:
            norms.add(value, GRADIENT_EXPLODES["z"])
            yield from _explodes(norms, step, "gradient norm", "entries")


def _explodes(norms: Stream, step: int, where: str, entries: str) -> Iterator[Finding]:
    rule = GRADIENT_EXPLODES
    if norms.z_of_last <= rule["z"] or len(norms.all) <= rule["known"]:
        return
    norm, usual = norms.all[-1], math.exp(median(norms.values))
    if sum(value > rule["times"] * usual for value in norms.recent(8)) >= rule["of_eight"]:
        yield rule.finding(
            severity="warning",
            step=step,
            where=where,
            says=f"the gradient norm is {norm:.3g}, {norm / usual:.0f} times its usual {usual:.3g}, in most of 8 "
            f"{entries}.",
            sure=0.7,
            refuted_by=f"a norm back near {usual:.3g}",
            evidence={"norm": norm, "usual": usual, "z": norms.z_of_last},
        )
