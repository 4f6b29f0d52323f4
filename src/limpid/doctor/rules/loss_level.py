"""The level of the loss: its first value, a level that it never leaves, and what is too good to be true."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, median, variance
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, in_log, on_step
from limpid.doctor.rules.accumulation import NOT_DIVIDED
from limpid.doctor.rules.loss import LOSS_SUMMED
from limpid.doctor.weights import fresh_gains

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.logs.table import Curves
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "loss_level"

INITIAL_LOSS_OFF = Rule(
    "initial-loss-off",
    FAMILY,
    detects="A first loss that is not what fresh weights must give.",
    equation=r"E[L_0] = \ln V + \sigma^2 / 2",
    source="moment generating function of a Gaussian, σ the std of the model's own logits",
    threshold="{off:g} nat and {errors:g} standard errors σ/√N off, for fresh weights with σ up to {spread:g}; not "
    "below ln V where no gain of a norm shows that they are fresh",
    thresholds={
        "off": Threshold(0.5, "the formula is good to 0.08 for σ ≤ 2, the rest is the unevenness of tokens"),
        "errors": Threshold(4, "1 in 15,000 of a Gaussian"),
        "spread": Threshold(2, "beyond it the weights are too large, which is another rule"),
    },
    cost="none: logits of the first forward pass",
    meant="a head that begins at the frequencies of its tokens, or is tied to the embeddings",
    needs=(Probe.PARAMETERS, Probe.BACKWARD, Probe.LOSS_GRADIENT),
    cause="a head that favours or shuns the targets: leaking input, wrong targets, or a bias",
    fix="look at the most likely tokens of the untrained model",
)

LOSS_BELOW_FLOOR = Rule(
    "loss-below-floor",
    FAMILY,
    detects="A loss below what text allows: the answer leaked into the input.",
    equation=r"L < 0.3 \ln 2 \;\text{nat per byte}",
    source="Shannon 1951 (0.6 … 1.3 bit per letter)",
    threshold="below {floor:.3f} nats at {steps:g} steps in a row of rows never seen before, of {classes:g} classes or "
    "more, once {tokens:g} tokens have an entropy above {entropy:g}; in a log the median of the last {last:g} losses",
    thresholds={
        "floor": Threshold(0.3 * math.log(2), "half of the lowest estimate for text never seen before"),
        "steps": Threshold(10, "one easy batch proves nothing"),
        "classes": Threshold(64, "codes of few signs may well be predictable"),
        "tokens": Threshold(4096, "an entropy of less is not known"),
        "entropy": Threshold(1.5, "below it the text itself is nearly constant"),
        "last": Threshold(10, "as above"),
    },
    cost="none: the loss and the row hashes",
    meant="sequences that follow rules: copies, sums, a grammar, moves of a game",
    needs=(Probe.LOSS, Probe.ROWS, Probe.LOSS_GRADIENT, Probe.LOG),
    cause="targets leak into the inputs: labels not shifted, no causal mask, or a task that copies",
    fix="run the causality and label tests: doctor.preflight(batch)",
    refuted_by="an equally low loss of a model that cannot see ahead",
)

LOSS_CONSTANT = Rule(
    "loss-constant",
    FAMILY,
    detects="A loss that is the same number at every step, on other batches and with other weights: it compares a "
    "model with itself.",
    equation=r"L_{t+1} = L_t \neq 0 \;\text{with}\; x_{t+1} \neq x_t,\; g \neq 0",
    source="Rafailov et al. 2023, eq. 7, arXiv:2305.18290: ln 2 where policy and reference are one model",
    threshold="{steps:g} losses in a row within {rounding:.1e} of each other, not 0 (a policy's surrogate is), on "
    "different rows, with gradients and a rate above 0",
    thresholds={
        "steps": Threshold(10, "a margin that all rows miss alike lasts until the first updates"),
        "rounding": Threshold(2.0**-20, "sixteen roundings of float32"),
    },
    cost="none: the losses are there",
    suffers=True,
    needs=(Probe.LOSS, Probe.ROWS, Probe.GRADIENT_NORM),
    cause="the reference, teacher or target is the model itself, not a copy, so that both move together",
    fix="reference = copy.deepcopy(model).requires_grad_(False), before training begins",
    refuted_by="two different losses",
    explains=("loss-plateau", "loss-never-falls"),
)

NEVER_FALLS = Rule(
    "loss-never-falls",
    FAMILY,
    detects="A loss that stays where it began: nothing is learned.",
    equation=r"L_t \approx L_1 \;(= \ln V)",
    source="definition; Shannon 1948 (ln V is the loss of a guess that knows nothing)",
    threshold="from the first steps on, in {entries:g} entries over {steps:g} steps or more, the last quarter no lower "
    "than the first, within {errors:g} standard errors and {least:.1%} of its level; a fault where that is ln V "
    "within {near:g} nat, else a warning",
    thresholds={
        "entries": Threshold(20, "quarters of five: fewer have no scatter to judge by"),
        "steps": Threshold(100, "what learns at all has left ln V by then, a warm-up of usual length included"),
        "errors": Threshold(2, "a fall that is there shows in a quarter of the run at more"),
        "least": Threshold(0.01, "ln V falls by a tenth with the first counts of words"),
        "near": Threshold(0.3, "logits of fresh weights have a std up to 0.8, which adds its square over 2"),
    },
    cost="none: the losses are there",
    suffers=True,
    needs=(Probe.LOG,),
    cause="updates that do not reach the model, a rate of 0 or far too low, or targets that have nothing to do with "
    "the inputs",
    fix="limpid.watch(model, optimizer) tells them apart: what the optimizer holds, whether weights change, what is "
    "taught",
    refuted_by="a lower loss",
)


@before_first_step(INITIAL_LOSS_OFF)
def first_loss(exam: Exam) -> Iterator[Finding]:
    """The mean surprise against ln V + σ²/2."""
    rule = INITIAL_LOSS_OFF
    if not exam.loss_gradients or not exam.fresh or exam.trial is None:
        return
    gradient = exam.loss_gradients[0]
    vocab, spread, labels = gradient.shape[-1], gradient.logit_std, int(gradient.labelled.sum())
    if not labels or spread > rule["spread"] or gradient.misfit > 0.3 or gradient.ids is None:
        return  # where labels are no tokens, one that is frequent decides
    seen, expected = gradient.mean_surprise, math.log(vocab) + spread**2 / 2
    if abs(seen - expected) <= rule["off"] + rule["errors"] * spread / math.sqrt(labels):
        return
    if seen < math.log(vocab) - rule["off"] and not fresh_gains(exam.info)[1]:
        return  # without norms weights are fresh by their spread alone, and what knows its text is not
    yield rule.finding(
        severity="warning",
        where="loss",
        says=f"fresh weights give a first loss of {seen:.2f} nats; ln V + σ²/2 = {expected:.2f} is expected (V = "
        f"{vocab:,}, std of logits {spread:.2f}).",
        sure=0.7,
        refuted_by=f"a first loss near {expected:.2f}",
        evidence={"first_loss": seen, "expected": expected, "logit_std": spread, "vocab": vocab},
    )


@on_step(LOSS_BELOW_FLOOR)
def below_floor(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A loss that text never seen before does not allow: asked of new rows only."""
    rule, rows = LOSS_BELOW_FLOOR, history.rows
    if not rows.count or record.loss is None or not rows.new_rows:
        history.in_a_row(rule.slug, False)
        return
    if history.next_token_classes < rule["classes"] or not rows.histograms:
        return
    low = 0 < record.loss < rule["floor"] and rows.tokens > rule["tokens"]
    low = low and rows.unigram_entropy > rule["entropy"]
    if history.in_a_row(rule.slug, low) == rule["steps"]:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="loss",
            says=f"on rows never seen before the loss is {record.loss:.3f} nats per token, below what any text allows "
            f"({rule['floor']:.2f}): the answer is in the input.",
            sure=0.7,
            evidence={
                "loss": record.loss,
                "floor": float(rule["floor"]),
                "unigram_entropy": rows.unigram_entropy,
            },
        )


@on_step(LOSS_CONSTANT)
def constant(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, losses = LOSS_CONSTANT, history.losses_before(1)
    other = len(history.rows.batches) > 1 and history.rows.batches[-1] != history.rows.batches[-2]
    moves = bool(record.norm) and record.has_rates and history.rates[-1] > 0
    wide = any(root.element_size() >= 4 for root in record.roots)  # half precision has few numbers
    same = history.loss_was_added and bool(losses) and record.loss is not None
    same = same and abs((record.loss or 0.0) - losses[-1]) <= rule["rounding"] * losses[-1]
    if history.in_a_row(rule.slug, same and other and moves and wide) == rule["steps"]:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="loss",
            meant="a surrogate whose value is constant, and whose gradient counts" if losses[-1] % 1 == 0 else None,
            says=f"the loss has been {losses[-1]:.7g} at {rule['steps']:g} steps in a row, on different rows and with "
            "gradients that are not 0: it does not depend on the weights, as when a model is compared with itself.",
            sure=0.9,
            evidence={"loss": losses[-1]},
        )


@in_log(LOSS_BELOW_FLOOR)
def below_floor_in_log(curves: Curves) -> Iterator[Finding]:
    rule, losses, evals = LOSS_BELOW_FLOOR, curves.values("loss"), curves.values("eval_loss")
    if len(losses) < 20 or (curves.vocab or 1000) < rule["classes"] or not curves.of_language:
        return
    low = median(losses[-int(rule["last"]) :])
    if 0 < low < rule["floor"] and (not evals or min(evals) < 2 * low + 0.05):
        yield rule.finding(
            severity="warning",
            step=curves.steps[-1],
            where="loss",
            says=f"training{' and evaluation' if evals else ''} loss of {low:.3f} nats per token is below what text "
            f"allows ({rule['floor']:.2f}): copying, a leak, or a set that is learned by heart.",
            cause="labels not shifted, no causal mask, or the same rows again and again",
            fix="doctor.preflight(batch) tells them apart",
            sure=0.6,
            refuted_by="an honest evaluation with this loss",
            evidence={"loss": low},
        )


MOST_WORDS = math.log(1e9)
"""Nats: nobody guesses among more words."""


@in_log(NEVER_FALLS)
def never_falls(curves: Curves) -> Iterator[Finding]:
    rule, points = NEVER_FALLS, [(s, v) for s, v in curves.series.get("loss", []) if math.isfinite(v)]
    losses, steps = [v for _, v in points], [s for s, _ in points]
    if len(points) < rule["entries"] or min(losses) <= 0 or steps[-1] - steps[0] < rule["steps"]:
        return
    if not curves.of_language:
        return
    quarter = len(losses) // 4
    first, last = losses[:quarter], losses[-quarter:]
    level, fall = fmean(losses), fmean(first) - fmean(last)
    error = math.sqrt((variance(first) + variance(last)) / quarter)
    begins = steps[0] <= max(20, 0.05 * (steps[-1] - steps[0]))
    if not begins or fall > rule["errors"] * error or abs(fall) > rule["least"] * level:
        return
    chance = curves.vocab is not None and abs(level - math.log(curves.vocab)) < rule["near"]
    words = f"that of a guess among {math.exp(min(level, MOST_WORDS)):,.0f} words that knows nothing"
    guess = words if level < MOST_WORDS else "above that of any guess among words"
    what = f"ln V = {math.log(curves.vocab or 1):.2f}, {guess}" if chance else guess
    norms = [v for v in curves.values("grad_norm") if math.isfinite(v)]
    arrives = f"; gradients are there (norm {median(norms):.2g})" if norms and median(norms) > 0 else ""
    arrives = "; every gradient is 0" if norms and max(norms) == 0 else arrives
    yield rule.finding(
        severity="fault" if chance else "warning",
        step=steps[0],
        where="loss",
        says=f"the loss is {level:.3g} from step {steps[0]} to step {steps[-1]:,} and does not fall"
        + (f": {what}{arrives}." if chance or level > 2 else f"{arrives}."),
        sure=0.9 if chance else 0.6,
        evidence={"loss": level, "fall": fall, "error": error, "ln_vocab": math.log(curves.vocab or 1)},
    )


@in_log(LOSS_SUMMED, NOT_DIVIDED)
def first_loss_of_a_log(curves: Curves) -> Iterator[Finding]:
    """The first loss against ln V: a sum, or a factor k."""
    losses = curves.values("loss")
    if not losses or not math.isfinite(losses[0]) or curves.steps[0] > 20 or not curves.of_language:
        return
    first, expected = losses[0], math.log(curves.vocab or 2**18)
    ratio, whole = first / expected, round(first / expected)
    multiple = ratio > NOT_DIVIDED["times"] and abs(ratio / whole - 1) < NOT_DIVIDED["whole"]
    if curves.vocab and multiple and whole <= NOT_DIVIDED["most"]:
        cause = f"{whole} micro-batches (or ranks) are added, not averaged"
        yield _too_large(NOT_DIVIDED, first, expected, cause, 0.8)
    elif curves.vocab and ratio > LOSS_SUMMED["times"]:
        yield _too_large(LOSS_SUMMED, first, expected, "a sum over tokens, or weights that start far too large", 0.6)
    elif not curves.vocab and first > LOSS_SUMMED["first"]:
        yield _too_large(LOSS_SUMMED, first, expected, "a sum over tokens or micro-batches", 0.6)


def _too_large(rule: Rule, first: float, expected: float, cause: str, sure: float) -> Finding:
    return rule.finding(
        severity="warning",
        where="loss",
        says=f"the first loss is {first:.1f}, {first / expected:.3g} times ln V = {expected:.2f}: {cause}.",
        cause=cause,
        fix="log and minimise the mean over the labels of the whole step",
        sure=sure,
        refuted_by=f"a first loss near {expected:.2f}",
        evidence={"first_loss": first, "ln_vocab": expected, "ratio": first / expected},
    )
