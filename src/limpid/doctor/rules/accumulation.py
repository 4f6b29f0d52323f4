"""How the losses of micro-batches add up to that of a step; asked with the other formulas of a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold

if TYPE_CHECKING:
    from limpid.doctor.loss_gradient import LossGradient

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
    refuted_by="equal weights of all tokens",
    explains=("loss-formula-unusual",),
)

NOT_DIVIDED = Rule(
    "accumulation-not-divided",
    FAMILY,
    detects="Gradients of k micro-batches are added, each being a full mean: the step is k times too large.",
    equation=r"g = \sum_{j=1}^k \nabla L_j \;\text{instead of}\; \tfrac1k \sum_j \nabla L_j",
    source=FROM_GRADIENT,
    threshold="the weights of a step's tokens add up to k within {near:g}; in a log a first loss that is a whole "
    "multiple of ln V within {whole:g}, {times:g} to {most:g} times",
    thresholds={
        "near": NEAR,
        "whole": Threshold(0.05, "a first loss is good to σ²/2 = 0.2 nat of ln V = 4 or more"),
        "times": Threshold(1.8, "twice, less what the first logged steps have learned"),
        "most": Threshold(64, "beyond it every number is near a whole one"),
    },
    cost="the gradient of the logits, in the first steps and every 50th",
    needs=(*NEEDS, Probe.LOG),
    cause="the loss is not divided by the number of micro-batches",
    fix="divide each micro-batch's summed loss by all labels of the step",
    refuted_by="weights that add up to 1",
    explains=("clipped-every-step",),
)


@dataclass(frozen=True)
class Formula:
    """What the gradients of one step say of its loss: one entry per micro-batch."""

    gradients: Sequence[LossGradient]
    loss: float | None
    scale: float  # the loss scale that the gradients carry
    step: int | None

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
    if k == 1 or not abs(total / k - 1) < NOT_DIVIDED["near"]:
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
        fix="sum over all labels, divide by their number; or leave it, where every row should count the same",
        sure=0.9,
        evidence={"ratio": spread},
    )
