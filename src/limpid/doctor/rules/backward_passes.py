"""Backward passes of one loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "backward_passes"

BACKWARD_TWICE = Rule(
    "backward-twice",
    FAMILY,
    detects="Two backward passes from one and the same loss in a step: its gradient is added twice.",
    equation=r"g = 2\, \partial L / \partial \theta",
    source="documentation of torch.Tensor.backward: gradients are accumulated in the leaves",
    threshold="exact: the very memory of a loss that a pass of this step began with, gradients of it still there, and "
    "no inputs named, in {steps:g} steps",
    thresholds={"steps": Threshold(2, "the first step of a loop may be set-up")},
    cost="an address for each pass",
    needs=(Probe.EVENTS,),
    cause="retain_graph=True and a second backward(), as to have the gradient printed, or in two branches",
    fix="one backward(); torch.autograd.grad(loss, …, retain_graph=True) for a look at gradients",
    refuted_by="gradients cleared in between",
    explains=("update-not-as-predicted", "accumulation-not-divided", "learning-rate-too-high", "clipped-every-step"),
)


@on_step(BACKWARD_TWICE, asks="backward_again")
def twice(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule = BACKWARD_TWICE
    if record.backward_again and history.times(rule.slug) >= rule["steps"]:
        yield rule.finding(
            severity="fault",
            step=record.number,
            where="backward",
            says=f"{record.backward_again + 1} backward passes begin at the same loss, and nothing is cleared between "
            f"them: the gradient is {record.backward_again + 1} times as large.",
            evidence={"passes": record.backward_again + 1},
        )
