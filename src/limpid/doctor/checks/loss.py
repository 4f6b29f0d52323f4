"""The loss: its formula, read from the gradient of the logits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from limpid.doctor.broadcasting import Shapes
from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding
from limpid.doctor.loss_gradient import LossGradient


def formula(exam: Exam) -> Iterator[Finding]:
    if not exam.loss_gradients or exam.trial is None:
        return
    yield from formula_of(exam.loss_gradients, exam.trial.loss, 1.0, None, exam.fresh)


def spread_out(exam: Exam) -> Iterator[Finding]:
    if exam.trial is not None and exam.trial.spread_out is not None:
        yield broadcast(exam.trial.spread_out, None)


def broadcast(shapes: Shapes, step: int | None) -> Finding:
    given, target = shapes
    return Finding(
        rule="loss-broadcast",
        severity="fault",
        step=step,
        where="loss",
        says=f"predictions of shape {given} and targets of shape {target} are compared all with all: each "
        "prediction is pulled towards the mean of all targets.",
        cause="an axis of length 1 on one side, which broadcasting repeats",
        fix="prediction.squeeze(-1), or target.unsqueeze(-1)",
        refuted_by="equal shapes",
        evidence={"prediction": list(given), "target": list(target)},
    )


def formula_of(
    loss_gradients: Sequence[LossGradient], loss: float | None, scale: float, step: int | None, fresh: bool
) -> Iterator[Finding]:
    """Which formula these gradients are of. `scale` is the loss scale that they carry; one reading per micro-batch."""
    first = loss_gradients[0]
    if not bool(first.labelled.any()):
        return
    if first.squashed:
        yield squashed(first, step, first.squashed)
        return
    if first.unbalanced < 0.1 and (first.simplex or (first.unit and first.misfit < 0.01)):
        yield squashed(first, step, "softmax" if first.simplex else "sigmoid")
        return
    if _weighted_by_probability(first):
        yield log_forgotten(step)
        return
    if first.misfit > 0.5 and first.zeros < 0.1:
        mixed = first.unbalanced > 0.1 and step_is_of_language(first)
        yield Finding(
            rule="loss-formula-unusual",
            severity="warning" if mixed else "notice",
            step=step,
            where="loss",
            says=f"the loss is no cross-entropy of these logits: {first.misfit:.0%} of its gradient is something else"
            + (
                ", and the gradients of a position do not add up to 0 over the vocabulary, as those of every loss of "
                "log-probabilities do: the softmax runs over another axis."
                if mixed
                else "."
            ),
            cause="a view or reshape that mixes classes and positions"
            if mixed
            else "another objective, or extra terms",
            fix="cross_entropy(logits.flatten(0, 1), targets.flatten()), or logits.transpose(1, 2)"
            if mixed
            else "nothing, if that is meant",
            sure=0.9 if mixed else 0.6,
            refuted_by="gradients of each position that add up to 0",
            evidence={"misfit": first.misfit, "unbalanced": first.unbalanced},
        )
        return
    # of few classes two unknowns explain any gradient
    unknown = first.shape[-1] >= 8 and first.misfit > 1e-3 and first.misfit_log_z < 0.05
    if first.row_sum < -0.01 and unknown:
        yield Finding(
            rule="logits-drift",
            severity="warning",
            step=step,
            where="loss",
            says=f"the loss holds a term {first.row_sum:.2g}·log Z, which rewards larger logits without end: softmax "
            "does not see it, number formats do.",
            cause="a z-loss with the wrong sign, or a term outside the log-probabilities",
            fix="+1e-4·log² Z, or no such term",
            sure=0.9,
            refuted_by="gradients of each position that add up to 0",
            evidence={"coefficient": first.row_sum},
        )
    weights = [reading.total_weight / scale for reading in loss_gradients]
    labels = [max(1, reading.labels) for reading in loss_gradients]
    total, count, k = sum(weights), sum(labels), len(loss_gradients)
    evidence = {"sum_of_weights": total, "labels": count, "micro_batches": k}
    per_token = [w / n for w, n in zip(weights, labels, strict=True)]
    # tolerance: logit gradients in half precision carry 2^-8 each
    near = 0.03
    rows = sum(reading.shape[0] for reading in loss_gradients)
    positions = sum(reading.shape[0] * reading.shape[1] for reading in loss_gradients)
    parts = {
        "": 1,
        f" divided by {k} micro-batches": k,
        f" divided by {rows} rows": rows,
        f" divided by {rows // k} rows": rows // k,
    }
    how = next(
        (text for text, part in parts.items() if part < count / 2 and abs(total * part / count - 1) < near), None
    )
    summed = how is not None and total > 1.5
    if count > 3 and summed:
        share = (
            f"{loss:,.0f} = {count:,} × {loss / count:.2f}"
            if loss is not None and k == 1
            else f"Σ weights = {total:,.0f}"
        )
        yield Finding(
            rule="loss-summed",
            severity="fault",
            step=step,
            where="loss",
            says=f"the loss is a sum over {count:,} tokens{how}, not their mean ({share}): gradients are {total:,.0f} "
            "times a mean's, so that clipping acts on every step and Adam's ε and logged losses mean nothing.",
            cause='reduction="sum" without a division',
            fix="divide by the number of labels of the whole step",
            sure=0.99,
            refuted_by="weights of the tokens that add up to 1",
            evidence=evidence,
        )
    elif k > 1 and abs(total / k - 1) < near:
        yield Finding(
            rule="accumulation-not-divided",
            severity="fault",
            step=step,
            where="loss",
            says=f"{k} micro-batches each add a full mean: the weights of the step's tokens add up to {total:.2f} "
            "instead of 1.",
            cause="the loss is not divided by the number of micro-batches",
            fix="divide each micro-batch's summed loss by all labels of the step",
            sure=0.98,
            refuted_by="weights that add up to 1",
            evidence=evidence,
        )
    elif total < 0.9 and abs(total * positions / count - 1) < near:
        yield Finding(
            rule="loss-formula-unusual",
            severity="warning",
            step=step,
            where="loss",
            says=f"the loss is divided by all {positions:,} positions, of which {count:,} have a label: it is "
            f"{1 / total:.1f} times too small, and more so the fewer labels a batch has.",
            cause="a mean over masked positions too",
            fix="divide by the number of labels",
            sure=0.95,
            refuted_by="weights that add up to 1",
            evidence=evidence | {"positions": positions},
        )
    elif not 0.5 < total < 2:
        yield Finding(
            rule="loss-formula-unusual",
            severity="notice",
            step=step,
            where="loss",
            says=f"the weights of the step's {count:,} labels add up to {total:.3g}, to 1 in a mean.",
            cause="a factor on the loss",
            fix="nothing, if it is meant; Adam's ε and clipping see it",
            sure=0.7,
            refuted_by="weights that add up to 1",
            evidence=evidence,
        )
    spread = max(labels) / min(labels)
    means = [w * k / total for w in weights]
    if k > 1 and spread > 1.5 and all(abs(m - 1) < 0.05 for m in means):
        heavy, light = labels.index(min(labels)), labels.index(max(labels))
        yield Finding(
            rule="loss-mean-of-means",
            severity="fault",
            step=step,
            where=f"micro-batch {heavy}",
            says=f"a token in micro-batch {heavy} ({labels[heavy]} labels) counts "
            f"{per_token[heavy] / per_token[light]:.1f} times one in micro-batch {light} ({labels[light]} labels): "
            "each micro-batch is averaged before averaging.",
            cause="every micro-batch divides by its own labels, then by their number",
            fix=f"divide each micro-batch's summed loss by all {count:,} labels of the step (num_items_in_batch)",
            sure=0.99,
            refuted_by="equal weights of all tokens",
            evidence=evidence | {"labels_each": labels[:32], "ratio": spread},
        )
    else:
        yield from _rows_weighted(first, step)


def _weighted_by_probability(reading: LossGradient) -> bool:
    """Whether a label's weight is its probability: the gradient of -p, where that of -log p weighs all alike."""
    labelled = reading.labelled
    if reading.misfit > 0.01 or int(labelled.sum()) < 8:
        return False
    weight = reading.weight[labelled].double()
    over = weight * reading.surprise[labelled].double().exp()

    def spread(x: torch.Tensor) -> float:
        return float(x.std() / x.mean().clamp(min=1e-300))

    return spread(weight) > 0.01 and spread(over) < 0.1 * spread(weight)


def log_forgotten(step: int | None) -> Finding:
    return Finding(
        rule="loss-formula-unusual",
        severity="fault",
        step=step,
        where="loss",
        says="the loss is -p of each target, not -log p: what the model already knows counts most, what it does not "
        "know has no gradient.",
        cause="nll_loss of probabilities, which expects their logarithms",
        fix="cross_entropy(logits, targets), or nll_loss(log_softmax(logits), targets)",
        sure=0.95,
        refuted_by="equal weights of likely and unlikely targets",
    )


def squashed(reading: LossGradient, step: int | None, name: str) -> Finding:
    """The logits went through something before the loss: which, by the gradient that it would give."""
    vocab = reading.shape[-1]
    floor = math.log(math.e + vocab - 1) - 1
    twice = name == "softmax"
    low = f"it cannot fall below {floor:.2f} nats" if name != "tanh" else "it cannot be sure of any token"
    return Finding(
        rule="softmax-twice" if twice else "loss-formula-unusual",
        severity="fault",
        step=step,
        where="loss",
        says=f"the loss gets {'probabilities' if twice else f'{name}(logits)'} where it expects logits: its "
        "gradient is that of "
        f"cross-entropy of {name}(logits) (misfit {reading.misfit_squashed:.1e}, of the logits "
        f"{reading.misfit:.1e}); {low}" + (f" and gradients are about {vocab:,} times too small." if twice else "."),
        cause=f"{name} in the model or before a loss that applies softmax itself",
        fix="pass logits to cross_entropy (or log-probabilities to nll_loss)",
        sure=0.98,
        refuted_by="a gradient that fits cross-entropy of the logits themselves",
        evidence={"misfit": reading.misfit, "misfit_squashed": reading.misfit_squashed, "floor": floor, "vocab": vocab},
    )


def step_is_of_language(reading: LossGradient) -> bool:
    """Whether inputs and outputs share a vocabulary, as in language modelling."""
    return reading.ids is not None and int(reading.ids.max()) < reading.shape[-1]


def _rows_weighted(reading: LossGradient, step: int | None) -> Iterator[Finding]:
    """Rows averaged before averaging: a token's weight is 1 over the labels of its row."""
    weight, rows = reading.weight.cpu(), reading.rows.cpu()
    labelled = weight > 0
    ids = rows[labelled].unique()
    if not reading.complete or len(ids) < 2:
        return
    counts = torch.stack([(labelled & (rows == r)).sum() for r in ids]).double()
    each = torch.stack([weight[labelled & (rows == r)].double().mean() for r in ids])
    spread = float(counts.max() / counts.min())
    products = counts * each
    if spread > 1.5 and float(products.max() / products.min()) < 1.05:
        yield Finding(
            rule="loss-mean-of-means",
            severity="warning",
            step=step,
            where="rows",
            says=f"each row is averaged before averaging: a token of the shortest row ({int(counts.min())} labels) "
            f"counts {spread:.1f} times one of the longest ({int(counts.max())}).",
            cause="a mean over positions, then a mean over rows",
            fix="sum over all labels, divide by their number; or leave it, where every row should count the same",
            sure=0.9,
            refuted_by="equal weights of all tokens",
            evidence={"ratio": spread},
        )


def initial_loss(exam: Exam) -> Iterator[Finding]:
    if not exam.loss_gradients or not exam.fresh or exam.trial is None:
        return
    yield from first_loss(exam.loss_gradients[0], None)


def first_loss(reading: LossGradient, step: int | None) -> Iterator[Finding]:
    """The mean surprise against ln V + σ²/2."""
    labelled = reading.labelled
    if not bool(labelled.any()) or reading.logit_std > 2 or reading.misfit > 0.3 or reading.ids is None:
        return  # where labels are no tokens, one that is frequent decides
    vocab, spread = reading.shape[-1], reading.logit_std
    expected = math.log(vocab) + spread**2 / 2
    seen = float(reading.surprise[labelled].mean())
    error = spread / math.sqrt(int(labelled.sum()))
    if abs(seen - expected) <= 0.5 + 4 * error:
        return
    yield Finding(
        rule="initial-loss-off",
        severity="warning",
        step=step,
        where="loss",
        says=f"fresh weights give a first loss of {seen:.2f} nats; ln V + σ²/2 = {expected:.2f} is expected (V = "
        f"{vocab:,}, std of logits {spread:.2f}).",
        cause="a head that favours or shuns the targets: leaking input, wrong targets, or a bias",
        fix="look at the most likely tokens of the untrained model",
        sure=0.7,
        refuted_by=f"a first loss near {expected:.2f}",
        evidence={"first_loss": seen, "expected": expected, "logit_std": spread, "vocab": vocab},
    )


def foreign_ids(exam: Exam) -> Iterator[Finding]:
    """Trained weights that predict worse than chance: the ids mean other words to them."""
    constant, gains = exam.info.fresh_gains()
    if not exam.loss_gradients or not gains or constant:
        return
    reading = exam.loss_gradients[0]
    if not bool(reading.labelled.any()) or reading.misfit > 0.3 or reading.ids is None:
        return
    seen, chance = float(reading.surprise[reading.labelled].mean()), math.log(reading.shape[-1])
    if seen <= chance + 0.1:
        return
    yield Finding(
        rule="vocabulary-mismatch",
        severity="warning",
        where="inputs",
        says=f"trained weights give a first loss of {seen:.2f} nats, above ln V = {chance:.2f}: they predict worse "
        "than chance.",
        cause="ids of another tokenizer, or weights in another layout than the code's",
        fix="the tokenizer that came with the weights; compare one text's loss with the published one",
        sure=0.8,
        refuted_by=f"a first loss well below {chance:.2f}",
        evidence={"first_loss": seen, "chance": chance},
    )


EXAM = [spread_out, formula, initial_loss, foreign_ids]
