"""The loss: which formula the code computes, read from the gradient of the logits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step
from limpid.doctor.rules.accumulation import (
    FROM_GRADIENT,
    MEAN_OF_MEANS,
    NEAR,
    NEEDS,
    NOT_DIVIDED,
    Formula,
    micro_batches_averaged,
    not_divided,
    rows_averaged,
)
from limpid.doctor.rules.logits import grows_with_log_z

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "loss"

LOSS_SUMMED = Rule(
    "loss-summed",
    FAMILY,
    detects="A sum over tokens where a mean is meant.",
    equation=r"\bar z = c\,(p - y),\; c = 1 \;\text{instead of}\; 1/N",
    source=FROM_GRADIENT,
    threshold="the weights of {labels:g} labels or more add up to their number within {near:g}, or to that over the "
    "number of micro-batches or rows (of rows a notice where nothing is clipped); in a log a first loss {times:g} "
    "times ln V or more, or above {first:g} nats where V is not known",
    thresholds={
        "near": NEAR,
        "labels": Threshold(4, "of three labels a factor on the loss would look the same"),
        "times": Threshold(4, "fresh weights far too large give two or three times ln V"),
        "first": Threshold(40, "three times ln 2^18, the largest vocabulary in use"),
    },
    cost="the gradient of the logits, in the first steps and every 50th",
    meant="a sum on purpose, as of a likelihood or an ELBO, with a rate and a clip that were made for it",
    needs=(*NEEDS, Probe.LOG),
    cause='reduction="sum" without a division',
    fix="divide by the number of labels of the whole step",
    refuted_by="weights of the tokens that add up to 1",
    explains=(
        "clipped-every-step",
        "loss-formula-unusual",
        "initial-loss-off",
        "gradient-explodes",
        "learning-rate-too-high",
    ),
)

SOFTMAX_TWICE = Rule(
    "softmax-twice",
    FAMILY,
    detects="The loss takes probabilities for logits: softmax is applied twice.",
    equation=r"L \ge \ln(e + V - 1) - 1",
    source=FROM_GRADIENT,
    threshold="the gradient is that of cross-entropy of softmax(logits) to 8 roundings of its format, and fits it "
    "{better:g} times as well as that of the logits; or rows that are not negative and add up to 1, with gradients "
    "that add up to 0 within {balanced:g}",
    thresholds={
        "better": Threshold(1 / 0.3, "what fits both nearly as well is rounding"),
        "balanced": Threshold(0.1, "as of every loss of log-probabilities"),
    },
    cost="the gradient of the logits, in the first steps and every 50th",
    needs=NEEDS,
    fix="pass logits to cross_entropy (or log-probabilities to nll_loss)",
    refuted_by="a gradient that fits cross-entropy of the logits themselves",
    explains=(
        "loss-plateau",
        "loss-formula-unusual",
        "half-gradients-flush-to-zero",
        "epsilon-dominates",
        "logits-bounded",
    ),
)

FORMULA_UNUSUAL = Rule(
    "loss-formula-unusual",
    FAMILY,
    detects="A loss that is none of the known formulas of its logits and labels, or a known but unusual one.",
    equation=r"L = f(z, y)",
    source=FROM_GRADIENT,
    threshold="a notice where {misfit:.0%} of the gradient is no cross-entropy's (a warning where it adds up to more "
    "than {unbalanced:g} of its size over the vocabulary, and to 0 to rounding along another axis), or weights add up "
    "to less than {low:g} or {high:g} and more; a warning where they add up to the labelled share of all positions "
    "within {near:g}, below {part:g}; a fault for -p, -z, sigmoid or tanh in place of logits; a warning for labels "
    "smoothed by {smoothed:g} or more: other terms and weights are choices",
    thresholds={
        "misfit": Threshold(0.5, "less is smoothing, an extra term, a temperature"),
        "unbalanced": Threshold(0.1, "0 for every loss of log-probabilities over the vocabulary"),
        "low": Threshold(0.5, "a factor of two is felt by ε and clipping"),
        "high": Threshold(2, "a factor of two is felt by ε and clipping"),
        "part": Threshold(0.9, "nearly all positions labelled is nearly a mean"),
        "near": NEAR,
        "smoothed": Threshold(
            0.75, "teachers are smoothed by a half and more on purpose; the share to keep is 0.8 or 0.9"
        ),
    },
    cost="the gradient of the logits, in the first steps and every 50th",
    meant="another objective: bounded or robust losses, scores of a critic, soft teachers, own weights",
    needs=NEEDS,
    cause="another objective, or extra terms",
    fix="nothing, if that is meant",
    refuted_by="weights that add up to 1",
    explains=("logits-bounded",),
)


@before_first_step(SOFTMAX_TWICE, FORMULA_UNUSUAL, LOSS_SUMMED, NOT_DIVIDED, MEAN_OF_MEANS)
def formula(exam: Exam) -> Iterator[Finding]:
    if exam.loss_gradients and exam.trial is not None:
        yield from judged(Formula(exam.loss_gradients, exam.trial.loss, 1.0, None))


@on_step(SOFTMAX_TWICE, FORMULA_UNUSUAL, LOSS_SUMMED, NOT_DIVIDED, MEAN_OF_MEANS, asks="downhill")
def formula_in_step(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if record.downhill and record.all_passes_read:
        multiplied = record.passes.scaled if record.passes is not None and watched.scaler is None else None
        scale = record.scale_of_loss / (multiplied or 1.0)
        clipped = record.clipped_to is not None and (record.norm or 0.0) > record.clipped_to
        by_hand = len(record.downhill) > 1 and bool(record.asides) and "backward" not in record.events
        yield from judged(Formula(record.downhill, record.loss, scale, record.number, clipped, by_hand))


def judged(formula: Formula) -> Iterator[Finding]:
    """Which formula these gradients are of."""
    if not bool(formula.first.labelled.any()):
        return
    for wrong in (squashed, probabilities, log_forgotten, not_normalised, over_smoothed, no_cross_entropy):
        finding = wrong(formula)
        if finding is not None:  # its weights mean nothing
            yield finding
            return
    yield from grows_with_log_z(formula.first, formula.step)
    alike = all(gradient.unevenness < FORMULA_UNUSUAL["near"] for gradient in formula.gradients)
    factors = (
        FACTORS if alike else (a_factor,)
    )  # what weighs labels by more than their number is no mean or sum of them
    if formula.joined_by_hand:  # what passes add up to before that is not what the update is given
        yield from filter(None, [rows_averaged(formula)])
        return
    yield from filter(None, [next(filter(None, (factor(formula) for factor in factors)), None)])
    yield from filter(None, [micro_batches_averaged(formula) or rows_averaged(formula)])


def squashed(formula: Formula) -> Finding | None:
    return _squashed(formula, formula.first.squashed) if formula.first.squashed else None


def probabilities(formula: Formula) -> Finding | None:
    """Outputs that are probabilities by their values."""
    first = formula.first
    if not first.unbalanced < SOFTMAX_TWICE["balanced"] or not (first.simplex or (first.unit and first.misfit < 0.01)):
        return None
    return _squashed(formula, "softmax" if first.simplex else "sigmoid")


def _squashed(formula: Formula, name: str) -> Finding:
    """The logits went through something before the loss: which, by the gradient that it would give."""
    first, vocab, twice = formula.first, formula.first.shape[-1], name == "softmax"
    floor = math.log(math.e + vocab - 1) - 1
    low = f"it cannot fall below {floor:.2f} nats" if name != "tanh" else "it cannot be sure of any token"
    return (SOFTMAX_TWICE if twice else FORMULA_UNUSUAL).finding(
        severity="fault",
        step=formula.step,
        where="loss",
        says=f"the loss gets {'probabilities' if twice else f'{name}(logits)'} where it expects logits: its gradient "
        f"is that of cross-entropy of {name}(logits) (misfit {first.misfit_squashed:.1e}, of the logits "
        f"{first.misfit:.1e}); {low}" + (f" and gradients are about {vocab:,} times too small." if twice else "."),
        cause=f"{name} in the model or before a loss that applies softmax itself",
        fix=SOFTMAX_TWICE.fix,
        meant="outputs that are bounded on purpose" if name == "tanh" else None,
        sure=0.98,
        refuted_by=SOFTMAX_TWICE.refuted_by,
        evidence={"misfit": first.misfit, "misfit_squashed": first.misfit_squashed, "floor": floor, "vocab": vocab},
    )


def log_forgotten(formula: Formula) -> Finding | None:
    """A label's weight is its probability: the gradient of -p, where that of -log p weighs all alike."""
    first, labelled = formula.first, formula.first.labelled
    one = len(first.taught[labelled].unique()) < 2  # a word that is liked, not a label of each position
    if first.misfit > 0.01 or int(labelled.sum()) < 8 or one:
        return None
    weight = first.weight[labelled].double()
    over = weight * first.surprise[labelled].double().exp()
    spread, spread_over = (float(x.std() / x.mean().clamp(min=1e-300)) for x in (weight, over))
    if not (spread > 0.01 and spread_over < 0.1 * spread):
        return None
    return FORMULA_UNUSUAL.finding(
        severity="fault",
        step=formula.step,
        where="loss",
        says="the loss is -p of each target, not -log p: what the model already knows counts most, what it does not "
        "know has no gradient.",
        cause="nll_loss of probabilities, which expects their logarithms, it may be",
        meant="an expected accuracy or an absolute error of probabilities, which wrong labels disturb less",
        fix="cross_entropy(logits, targets), or nll_loss(log_softmax(logits), targets)",
        sure=0.95,
        refuted_by="equal weights of likely and unlikely targets",
    )


def not_normalised(formula: Formula) -> Finding | None:
    """Only the label has a gradient, as of nll_loss, and what it was given adds up to more than one."""
    first = formula.first
    alone = first.zeros > 1 - 1.5 / first.shape[-1] and first.unbalanced > 0.99
    even = first.unevenness < FORMULA_UNUSUAL["near"]  # what is regressed on, as values of actions, has its own errors
    if not alone or not even or first.simplex or abs(first.log_z) < 1e-2:
        return None
    return FORMULA_UNUSUAL.finding(
        severity="fault",
        step=formula.step,
        where="loss",
        says=f"the loss is -z of each target, of logits that are not normalised (log Σ exp z = {first.log_z:.2f}, 0 of "
        "log-probabilities): it has no floor, and falls without limit as logits grow.",
        cause="nll_loss of logits, which expects log-probabilities, it may be",
        meant="a score that is raised as it stands, as of a critic or an energy",
        fix="cross_entropy(logits, targets), or nll_loss(log_softmax(logits), targets)",
        sure=0.95,
        refuted_by="log Σ exp of 0, or a gradient at other tokens than the target",
        evidence={"log_z": first.log_z, "zeros": first.zeros},
    )


def over_smoothed(formula: Formula) -> Finding | None:
    epsilon = formula.first.smoothing
    if epsilon < FORMULA_UNUSUAL["smoothed"]:
        return None
    return FORMULA_UNUSUAL.finding(
        severity="warning",
        step=formula.step,
        where="loss",
        says=f"labels are smoothed by {epsilon:.2g}: the target's share is {1 - epsilon:.2g}, and {epsilon:.0%} of the "
        "teaching is towards all tokens alike.",
        cause="label_smoothing is the share that is spread, not the share that the label keeps, it may be",
        meant="a teacher that is to be soft",
        fix=f"label_smoothing={1 - epsilon:.2g}, or 0.1",
        sure=0.9,
        refuted_by="a gradient that fits cross-entropy of the labels themselves",
        evidence={"smoothing": epsilon},
    )


def no_cross_entropy(formula: Formula) -> Finding | None:
    first, rule = formula.first, FORMULA_UNUSUAL
    if not (first.misfit > rule["misfit"] and first.zeros < 0.1):
        return None
    mixed = first.unbalanced > rule["unbalanced"] and first.over_another and first.is_of_language
    why = (
        ", and the gradients of a position do not add up to 0 over the vocabulary, as those of every loss of "
        "log-probabilities do, but along another axis: the softmax runs over that one"
    )
    fix = "cross_entropy(logits.flatten(0, 1), targets.flatten()), or logits.transpose(1, 2)"
    return rule.finding(
        severity="warning" if mixed else "notice",
        step=formula.step,
        where="loss",
        says=f"the loss is no cross-entropy of these logits: {first.misfit:.0%} of its gradient is something else"
        f"{why if mixed else ''}.",
        cause="a view or reshape that mixes classes and positions" if mixed else "",
        fix=fix if mixed else "",
        meant=None if mixed else "",
        sure=0.9 if mixed else 0.6,
        refuted_by="gradients of each position that add up to 0",
        evidence={"misfit": first.misfit, "unbalanced": first.unbalanced},
    )


def summed(formula: Formula) -> Finding | None:
    k, count, total = len(formula.gradients), formula.count, formula.total
    rows = sum(gradient.shape[0] for gradient in formula.gradients)
    parts = {
        "": 1,
        f" divided by {k} micro-batches": k,
        f" divided by {rows} rows": rows,
        f" divided by {rows // k} rows": rows // k,
    }
    near = LOSS_SUMMED["near"]
    hows = (text for text, part in parts.items() if part < count / 2 and abs(total * part / count - 1) < near)
    how = next(hows, None)
    if how is None or total <= 1.5 or count < LOSS_SUMMED["labels"]:
        return None
    alone = formula.loss is not None and k == 1
    share = (
        f"{formula.loss:,.0f} = {count:,} × {(formula.loss or 0) / count:.2f}" if alone else f"Σ weights = {total:,.0f}"
    )
    of_rows = how.endswith("rows") and not formula.clipped  # else only logs see it
    return LOSS_SUMMED.finding(
        severity="notice" if of_rows else "fault",
        step=formula.step,
        where="loss",
        says=f"the loss is a sum over {count:,} tokens{how}, not their mean ({share}): gradients are {total:,.0f} "
        "times a mean's, so that clipping acts on every step and Adam's ε and logged losses mean nothing."
        if not of_rows
        else f"the loss is the mean over rows of a sum over their tokens ({share} of {count:,}): gradients are "
        f"{total:,.0f} times those of a mean over tokens, which clipping, Adam's ε and logged losses would see.",
        cause="the likelihood of whole rows, it seems" if of_rows else "",
        fix="nothing, if that is meant" if of_rows else "",
        sure=0.6 if of_rows else 0.99,
        evidence=formula.evidence,
    )


def over_all_positions(formula: Formula) -> Finding | None:
    total, count, positions = formula.total, formula.count, formula.positions
    if not (total < FORMULA_UNUSUAL["part"] and abs(total * positions / count - 1) < FORMULA_UNUSUAL["near"]):
        return None
    return FORMULA_UNUSUAL.finding(
        severity="warning",
        step=formula.step,
        where="loss",
        says=f"the loss is divided by all {positions:,} positions, of which {count:,} have a label: it is "
        f"{1 / total:.1f} times too small, and more so the fewer labels a batch has.",
        cause="a mean over masked positions too",
        fix="divide by the number of labels",
        meant="a mean over all positions on purpose, in which rows of few labels count less",
        sure=0.95,
        evidence=formula.evidence | {"positions": positions},
    )


def a_factor(formula: Formula) -> Finding | None:
    if FORMULA_UNUSUAL["low"] < formula.total < FORMULA_UNUSUAL["high"]:
        return None
    return FORMULA_UNUSUAL.finding(
        severity="notice",
        step=formula.step,
        where="loss",
        says=f"the weights of the step's {formula.count:,} labels add up to {formula.total:.3g}, to 1 in a mean.",
        cause="a factor on the loss",
        fix="nothing, if it is meant; Adam's ε and clipping see it",
        sure=0.7,
        evidence=formula.evidence,
    )


FACTORS = (summed, not_divided, over_all_positions, a_factor)
"""What the sum of the weights may be, the most telling first."""
