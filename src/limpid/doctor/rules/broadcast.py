"""Predictions and targets of a regression that are compared all with all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, before_first_step, on_step

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.step_record import History, StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "broadcast"

BROADCAST = Rule(
    "loss-broadcast",
    FAMILY,
    detects="Predictions (n, 1) and targets (n,) that broadcast to n² differences.",
    equation=r"\textstyle\sum_{ij} (\hat y_i - y_j)^2 \;\text{instead of}\; \sum_i (\hat y_i - y_i)^2",
    source="definition; NumPy's broadcasting rules",
    threshold="exact: shapes",
    cost="none: shapes of the loss's arguments",
    needs=(Probe.BACKWARD, Probe.LOSS_INPUTS),
    cause="an axis of length 1 on one side, which broadcasting repeats",
    fix="prediction.squeeze(-1), or target.unsqueeze(-1)",
    refuted_by="equal shapes",
    explains=("loss-plateau", "gradient-is-not-the-gradient"),
)


@before_first_step(BROADCAST)
def broadcast(exam: Exam) -> Iterator[Finding]:
    if exam.trial is not None and exam.trial.spread_out is not None:
        yield _broadcast(exam.trial.spread_out, None)


@on_step(BROADCAST)
def broadcast_in_step(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if record.spread_out is not None:
        yield _broadcast(record.spread_out, record.number)


def _broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]], step: int | None) -> Finding:
    given, target = shapes
    return BROADCAST.finding(
        severity="fault",
        step=step,
        where="loss",
        says=f"predictions of shape {given} and targets of shape {target} are compared all with all: each prediction "
        "is pulled towards the mean of all targets.",
        evidence={"prediction": list(given), "target": list(target)},
    )
