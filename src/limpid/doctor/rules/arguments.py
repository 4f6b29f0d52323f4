"""Calls whose arguments are not what the documentation of the function asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "arguments"
DOCUMENTED = "documentation of torch.nn.functional, function by function: docs/doctor.md"
COST = "a look at the arguments of a few functions, on sampled steps"

OUTSIDE = Rule(
    "target-outside-range",
    FAMILY,
    detects="Targets that the loss is not defined for, such as labels of -1 for a binary cross-entropy, or of 0 where "
    "-1 and 1 are asked for.",
    equation=r"y \notin [0, 1]:\; \inf_z L(z, y) = -\infty;\quad y = 0:\; \partial L(y z) / \partial z = 0",
    source=DOCUMENTED,
    threshold="exact: values outside of those that the documentation gives, in what is learned from; smoothed labels "
    "that leave [0, 1] by no more than a half are a notice",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="targets within the documented range, or a gradient of 0 where they are not",
    explains=("loss-diverges", "loss-plateau", "logits-drift", "not-finite", "loss-never-falls", "nothing-learned"),
)

EXCHANGED = Rule(
    "loss-arguments-exchanged",
    FAMILY,
    detects="A loss that is given the label as its prediction and the prediction as its label.",
    equation=r"L(y, \hat y) \;\text{instead of}\; L(\hat y, y)",
    source=DOCUMENTED,
    threshold="exact: the gradient goes into the argument of the data, and the argument of the prediction has none; "
    "for a binary cross-entropy it also holds no more than two different numbers, such as 0 and 1",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="a gradient in the first argument",
    explains=("loss-diverges", "loss-plateau", "logits-drift", "loss-never-falls", "nothing-learned"),
)

ONE_CLASS = Rule(
    "softmax-of-one",
    FAMILY,
    detects="A softmax over one number alone: it is 1, and nothing can be learned through it.",
    equation=r"e^z / e^z = 1",
    source="definition of softmax",
    threshold="exact: the axis of classes has length 1 in a loss that is learned from",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="two classes or more",
    explains=("loss-constant", "loss-never-falls", "step-without-gradients", "loss-plateau", "nothing-learned"),
)

ITSELF = Rule(
    "pair-with-itself",
    FAMILY,
    detects="A loss of pairs or triplets whose parts are equal in every row.",
    equation=r"d(a, a) = 0",
    source=DOCUMENTED,
    threshold="exact: equal in every row, at two looks",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="rows that differ",
    explains=("loss-constant", "loss-never-falls", "loss-plateau"),
)

UNREACHABLE = Rule(
    "margin-out-of-reach",
    FAMILY,
    detects="A loss that no output can make small, or that never asks for anything: a margin beyond the distances that "
    "there are, labels that do not fit into their time.",
    equation=r"\cos \le 1 \le m;\quad \lVert a - n \rVert \le 2 \le m;\quad T < |y| + |\{i : y_i = y_{i-1}\}|",
    source=DOCUMENTED + "; Graves et al. 2006, section 3, doi:10.1145/1143844.1143891",
    threshold="exact: by the range of cosines and of distances of normalised vectors; more than half of the rows "
    "without an alignment",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="a margin within the range; rows whose labels fit into their time",
    explains=("loss-plateau", "not-finite", "loss-never-falls", "no-labels"),
)

ELSEWHERE = Rule(
    "normalised-over-another-axis",
    FAMILY,
    detects="Probabilities that add up to 1 along another axis than that of the classes.",
    equation=r"\textstyle\sum_{i} p_{ic} = 1 \;\text{instead of}\; \sum_c p_{ic} = 1",
    source=DOCUMENTED,
    threshold="exact: sums along both axes, to rounding",
    cost=COST,
    needs=(Probe.ARGUMENTS,),
    refuted_by="sums of 1 along the axis of the classes",
    explains=("loss-plateau", "loss-formula-unusual", "loss-never-falls", "nothing-learned", "batch-leaks"),
)


@on_step(OUTSIDE, EXCHANGED, ONE_CLASS, ITSELF, UNREACHABLE, ELSEWHERE)
def against_the_documentation(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    for rule in (OUTSIDE, EXCHANGED, ONE_CLASS, ITSELF, UNREACHABLE, ELSEWHERE):
        yield from found(rule, record, history)


def found(rule: Rule, record: StepRecord, history: History) -> Iterator[Finding]:
    """What the calls of a step say of a rule, once as many looks have shown it as are asked for."""
    for breach in {one.where: one for one in record.breaches if one.rule is rule}.values():
        if history.times(f"{rule.slug} {breach.where}") >= breach.looks:
            yield rule.finding(
                severity=breach.severity,
                step=record.number,
                where=breach.where,
                says=breach.says,
                cause=breach.cause,
                fix=breach.fix,
                meant=breach.meant,
                evidence=breach.evidence,
            )
