"""What an evaluation leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.step_record import History, StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "evaluation"

EVALUATION_CHANGES_WEIGHTS = Rule(
    "evaluation-changes-weights",
    FAMILY,
    detects="Weights that training goes on with after an evaluation, and that are not those before it.",
    equation=r"\theta_{\text{after evaluation}} = \theta_{\text{after the update}}",
    source="definition; Polyak & Juditsky 1992: the average is evaluated, the iterate is trained",
    threshold="exact: elements of three tensors differ between the end of an update and the next training pass, with "
    "passes without gradients in between, {times:g} evaluations in a row, and never in {without:g} steps or more "
    "without an evaluation",
    thresholds={
        "times": Threshold(2, "once may be a checkpoint that is loaded on purpose"),
        "without": Threshold(3, "where weights change between all steps that is the method of training"),
    },
    cost="eight elements of three tensors per update",
    needs=(Probe.WEIGHTS_KEPT,),
    cause="an average of the weights, or another copy, is swapped in for the evaluation and not swapped back: what was "
    "trained is overwritten",
    fix="keep a copy of the trained weights, and put it back after evaluating",
    refuted_by="the same weights before and after",
    explains=("loss-spike", "loss-plateau", "update-not-as-predicted", "weights-never-change"),
)


@on_step(EVALUATION_CHANGES_WEIGHTS)
def left_in_place(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule = EVALUATION_CHANGES_WEIGHTS
    if record.moved_since is None:
        return
    if not record.after_evaluation:
        history.steps_apart.update([record.moved_since])
        return
    again = history.in_a_row(rule.slug, record.moved_since)
    method = history.steps_apart[True] > 0 or history.steps_apart[False] < rule["without"]
    if again >= rule["times"] and not method:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="model",
            says=f"training goes on with other weights after an evaluation than before it, {again} times in a row: "
            f"{history.steps_apart[False]} times without an evaluation they stayed as the update left them.",
            sure=0.85,
            evidence={"evaluations": again, "without": history.steps_apart[False]},
        )
