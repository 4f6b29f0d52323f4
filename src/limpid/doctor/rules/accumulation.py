"""How the losses of micro-batches add up to that of a step; asked with the other formulas of a loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.libraries import is_library
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "accumulation"
FROM_GRADIENT = "of a cross-entropy the gradient of the logits is w (p - e_y): it tells labels and their weights"
NEEDS = (Probe.BACKWARD, Probe.LOSS_GRADIENT)
NEAR = Threshold(0.03, "gradients in half precision carry 2^-8 each; eight of them in a row")

MEAN_OF_MEANS = Rule(
    "loss-mean-of-means",
    FAMILY,
    detects="Micro-batches (or rows) averaged before they are averaged: tokens of short ones count more.",
    equation=r"w_j = N / (k\, n_j),\; \max w / \min w = n_{\max} / n_{\min}",
    source="huggingface.co/blog/gradient_accumulation (2024); transformers#35203",
    threshold="label counts of a step that differ {spread:g}-fold or more, and weights of each micro-batch (or row) "
    "that add up to the same within {near:g}",
    thresholds={
        "spread": Threshold(1.5, "what differs by less weighs tokens by less than what batches differ in anyway"),
        "near": Threshold(0.05, "sums of gradients in half precision, one more division than a plain mean"),
    },
    cost="the gradient of the logits, in the first steps and every 50th",
    needs=NEEDS,
    cause="every micro-batch divides by its own labels, then by their number",
    meant="micro-batches that are a task, speaker or document each, and count the same",
    refuted_by="equal weights of all tokens",
    explains=("loss-formula-unusual",),
)

NOT_DIVIDED = Rule(
    "accumulation-not-divided",
    FAMILY,
    detects="Gradients of k micro-batches are added, each being a full mean: the step is k times too large.",
    equation=r"g = \sum_{j=1}^k \nabla L_j \;\text{instead of}\; \tfrac1k \sum_j \nabla L_j",
    source=FROM_GRADIENT,
    threshold="the weights of a step's tokens add up to k within {near:g}, or each backward pass begins at the mean "
    "that "
    "the loss function returned for its micro-batch, and gradients are not divided after them; in a log a first loss "
    "that is a whole "
    "multiple of ln V within {whole:g}, {times:g} to {most:g} times",
    thresholds={
        "near": NEAR,
        "whole": Threshold(0.05, "a first loss is good to σ²/2 = 0.2 nat of ln V = 4 or more"),
        "times": Threshold(1.8, "twice, less what the first logged steps have learned"),
        "most": Threshold(64, "beyond it every number is near a whole one"),
    },
    cost="the gradient of the logits, in the first steps and every 50th",
    needs=(*NEEDS, Probe.LOG, Probe.EVENTS, Probe.PASSES, Probe.LOSS_INPUTS),
    cause="the loss is not divided by the number of micro-batches",
    fix="divide each micro-batch's summed loss by all labels of the step",
    meant="a sum over micro-batches with a rate for it, or a step that divides its length out (Adam, signs)",
    refuted_by="weights that add up to 1",
    explains=(
        "learning-rate-too-high",
        "loss-diverges",
        "clipped-every-step",
    ),
)


PASSES_UNEQUAL = Rule(
    "passes-count-unequally",
    FAMILY,
    detects="Gradients of earlier backward passes of a step that are cleared or shrunk before the later ones add to "
    "them.",
    equation=r"g = \textstyle\sum_j a_j\, g_j,\; a_j = \prod_{i > j} s_i = a_k = 1",
    source="definition: addition in param.grad; s_i is what gradients are multiplied by between two passes",
    threshold="exact: between two passes of one step, on other rows and with the same weights, gradients change by a "
    "factor, and the update is made with what the last pass left: a fault where a pass reaches it by less than "
    "{lost:.0%}, a warning below {share:.0%}, at {steps:g} steps whose loss is read, in a row",
    thresholds={
        "lost": Threshold(0.01, "cleared, or as good as"),
        "share": Threshold(0.9, "what differs by less weighs rows by less than chance does"),
        "steps": Threshold(2, "once may be a batch that was thrown away"),
    },
    cost="64 elements of 16 tensors before and after each backward pass, in the first steps and every 50th",
    needs=(Probe.PASSES, Probe.EVENTS),
    fix="once per step: zero_grad before its first backward pass; unscale and clip after its last one",
    meant="a running sum in .grad that fades, or is clipped after each part",
    refuted_by="gradients that are the same at the end of a pass and at the beginning of the next",
    explains=("loss-plateau", "clipped-every-step"),
)


@dataclass(frozen=True)
class Formula:
    """What the gradients of one step say of its loss: one entry per micro-batch."""

    gradients: Sequence[LossGradient]
    loss: float | None
    scale: float  # the loss scale that the gradients carry
    step: int | None
    clipped: bool = False  # whether the step's gradient was longer than its clipping allows
    joined_by_hand: bool = False  # whether the loop asked for the gradient of each pass, and joins them itself

    @property
    def first(self) -> LossGradient:
        return self.gradients[0]

    @cached_property
    def weights(self) -> list[float]:
        """Sum of the labels' weights in each micro-batch: 1/k in a mean."""
        return [gradient.total_weight / self.scale for gradient in self.gradients]

    @cached_property
    def labels(self) -> list[int]:
        return [max(1, gradient.labels) for gradient in self.gradients]

    @property
    def total(self) -> float:
        return sum(self.weights)

    @property
    def count(self) -> int:
        return sum(self.labels)

    @property
    def evidence(self) -> dict[str, Any]:
        return {"sum_of_weights": self.total, "labels": self.count, "micro_batches": len(self.gradients)}

    @property
    def positions(self) -> int:
        return sum(gradient.shape[0] * gradient.shape[1] for gradient in self.gradients)


def not_divided(formula: Formula) -> Finding | None:
    k, total = len(formula.gradients), formula.total
    pairs = any(gradient.inverted for gradient in formula.gradients)  # what is preferred and what is not
    if k == 1 or pairs or not abs(total / k - 1) < NOT_DIVIDED["near"]:
        return None
    return NOT_DIVIDED.finding(
        severity="fault",
        step=formula.step,
        where="loss",
        says=f"{k} micro-batches each add a full mean: the weights of the step's tokens add up to {total:.2f} instead "
        "of 1.",
        sure=0.98,
        evidence=formula.evidence,
    )


def micro_batches_averaged(formula: Formula) -> Finding | None:
    k, labels, weights, total = len(formula.gradients), formula.labels, formula.weights, formula.total
    spread = max(labels) / min(labels)
    even = all(abs(weight * k / total - 1) < MEAN_OF_MEANS["near"] for weight in weights)
    if k == 1 or spread <= MEAN_OF_MEANS["spread"] or not even:
        return None
    heavy, light = labels.index(min(labels)), labels.index(max(labels))
    ratio = (weights[heavy] / labels[heavy]) / (weights[light] / labels[light])
    return MEAN_OF_MEANS.finding(
        severity="fault",
        step=formula.step,
        where=f"micro-batch {heavy}",
        says=f"a token in micro-batch {heavy} ({labels[heavy]} labels) counts {ratio:.1f} times one in micro-batch "
        f"{light} ({labels[light]} labels): each micro-batch is averaged before averaging.",
        fix=f"divide each micro-batch's summed loss by all {formula.count:,} labels of the step (num_items_in_batch)",
        sure=0.99,
        evidence=formula.evidence | {"labels_each": labels[:32], "ratio": spread},
    )


def rows_averaged(formula: Formula) -> Finding | None:
    """Rows averaged before averaging: a token's weight is 1 over the labels of its row."""
    labels, weights = formula.first.by_row()
    if not formula.first.complete or len(labels) < 2:
        return None
    spread = max(labels) / min(labels)
    if spread <= MEAN_OF_MEANS["spread"] or not max(weights) / min(weights) < 1 + MEAN_OF_MEANS["near"]:
        return None
    return MEAN_OF_MEANS.finding(
        severity="warning",
        step=formula.step,
        where="rows",
        says=f"each row is averaged before averaging: a token of the shortest row ({min(labels)} labels) counts "
        f"{spread:.1f} times one of the longest ({max(labels)}).",
        cause="a mean over positions, then a mean over rows",
        fix="sum over all labels, divide by their number",
        meant="every answer, document or list counts the same, however long it is",
        sure=0.9,
        evidence={"ratio": spread},
    )


@on_step(NOT_DIVIDED, asks="shares")
def passes_of_means(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Backward passes that each begin at the whole mean of their micro-batch, whatever the loss."""
    k, shares = record.events.count("backward"), record.shares
    if k < 2 or len(shares) != k or len(record.micros) != k or len({name for name, _, _ in shares}) > 1:
        return
    if record.passes is None or record.passes.scaled is None or watched.scaler is not None:
        return
    if "zero_grad" in _between(record.events):  # who clears in between keeps what it takes elsewhere
        return
    ratios = [float(root / mean) if mean is not None and float(mean) else math.nan for _, root, mean in shares]
    times = sum(ratios) * record.passes.scaled
    if all(abs(ratio - 1) < NOT_DIVIDED["near"] for ratio in ratios) and abs(times / k - 1) < NOT_DIVIDED["near"]:
        yield NOT_DIVIDED.finding(
            severity="fault",
            step=record.number,
            where="loss",
            says=f"each of the {k} backward passes of a step begins at the whole mean of its micro-batch "
            f"({shares[0][0]}), "
            f"and gradients are not divided before the update: they are a sum, {k} times the mean.",
            sure=0.95,
            evidence={"micro_batches": k, "times": times},
        )


@on_step(PASSES_UNEQUAL, asks="passes")
def between_passes(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """What happens to gradients between two backward passes of one step.

    Several optimizers, watched or not, wipe each other's gradients by intent; a step towards flat places makes its
    passes on the same rows or at other weights; who joins gradients of several losses steps with none of them.
    """
    rule, passes = PASSES_UNEQUAL, record.passes
    if passes is None or not record.updated or record.beside:
        return
    plain = len(watched.optimizers) == 1 and passes.used and not passes.weights_moved and _on_other_rows(record)
    shares = passes.shares() if plain else {}
    name = min(shares, key=lambda name: shares[name], default="")
    if history.in_a_row(rule.slug, bool(name) and shares[name] < rule["share"]) != rule["steps"]:
        return
    least, uneven = shares[name], [name for name, share in shares.items() if share < rule["share"]]
    lost = least < rule["lost"]
    known = all(is_library(type(optimizer).__module__) for optimizer in watched.optimizers)
    # one's own may have read them between the passes; and of two passes one may be a look
    told = known and (passes.passes > 2 or _rows(record.micros) >= _rows(record.calls))
    how = "cleared" if lost else "clipped" if "clip" in _between(record.events) else "multiplied"
    what = "do not reach the update at all" if lost else f"reach the update by {least:.0%}"
    everywhere = "" if len(uneven) == len(shares) else f" in {len(uneven)} of {len(shares)} tensors looked at"
    yield rule.finding(
        severity=("fault" if lost else "warning") if told else "notice",
        step=record.number,
        where=name,
        says=f"gradients of earlier micro-batches {what}{everywhere}: between the {passes.passes} backward passes of a "
        f"step they are {how}.",
        cause=f"zero_grad between the backward passes of one step: only the last of {passes.passes} is learned from"
        if lost
        else f"gradients are {how} inside the loop over micro-batches, each time all that is there",
        meant=None if lost else "",
        sure=0.95,
        evidence={"passes": passes.passes, "least_share": least, "tensors": uneven[:32], "order": record.events[:24]},
    )


def _on_other_rows(record: StepRecord) -> bool:
    """Whether each backward pass had rows of its own."""
    import torch

    ids = [call.ids for call in record.calls if call.ids is not None]
    again = any(torch.equal(a, b) for i, a in enumerate(ids) for b in ids[:i] if a.shape == b.shape)
    return record.passes is not None and len(ids) >= record.passes.passes and not again


def _rows(held: Sequence[Any]) -> int:
    """Rows of token ids that micro-batches, or calls, hold."""
    return sum(len(one.ids) for one in held if one.ids is not None)


def _between(events: Sequence[str]) -> Sequence[str]:
    """What happens between the first and the last backward pass."""
    where = [i for i, event in enumerate(events) if event == "backward"]
    return events[where[0] : where[-1]] if where else ()
