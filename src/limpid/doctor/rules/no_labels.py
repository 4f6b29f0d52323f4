"""Rows and batches without a label: they teach nothing, or a mean over nothing breaks the loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, at_break, before_first_step, on_step

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.replay.nan_replay import BrokenStep
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "no_labels"

NO_LABELS = Rule(
    "no-labels",
    FAMILY,
    detects="A row or a whole batch without a single label: a mean over nothing.",
    equation=r"n_{\text{labels}} = 0 \Rightarrow 0/0",
    source="definition; unsloth#2900, trl#6668",
    threshold="exact count: a fault for a batch, a warning where more than {half:.0%} of the rows have none, else a "
    "notice",
    thresholds={"half": Threshold(0.5, "most of the work of the step teaches nothing")},
    cost="a count",
    meant="semi-supervised learning: rows whose label nobody knows, beside a loss that asks for none",
    needs=(Probe.BATCH, Probe.REPLAY),
    cause="labels are masked entirely: wrong template, or truncation cut the answer off",
    fix="drop such rows, or truncate the prompt instead of the answer",
    refuted_by="a label at or above 0",
    explains=("not-finite", "loss-plateau", "gradient-cut"),
)


@before_first_step(NO_LABELS)
def no_labels(exam: Exam) -> Iterator[Finding]:
    for index, micro in enumerate(exam.micros):
        if micro.labels is not None and micro.labels.ndim == 2:
            yield from _unlabelled(micro.labels, None, index if len(exam.micros) > 1 else None)


@on_step(NO_LABELS)
def no_labels_in_step(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    for index, micro in enumerate(record.micros):
        labels = record.host(micro.labels) if micro.labels is not None and micro.labels.ndim == 2 else None
        if labels is not None:
            for finding in _unlabelled(labels, record.number, index if len(record.micros) > 1 else None):
                if finding.severity == "fault":
                    yield finding


def _unlabelled(labels: Tensor, step: int | None, index: int | None) -> Iterator[Finding]:
    has_labels = (labels >= 0).any(-1)
    if bool(has_labels.all()):
        return
    empty, rows = int((~has_labels).sum()), len(has_labels)
    where = "batch" if index is None else f"micro-batch {index}"
    effect = ": a mean over nothing is 0/0 = NaN." if empty == rows else ", so they teach nothing."
    yield NO_LABELS.finding(
        severity="fault" if empty == rows else "warning" if empty > NO_LABELS["half"] * rows else "notice",
        step=step,
        where=where,
        says=f"{empty} of {rows} rows of the {where} have no label{effect}",
        evidence={"rows": rows, "empty": empty},
    )


@at_break(NO_LABELS)
def mean_over_nothing(broken: BrokenStep) -> Iterator[Finding]:
    labels = broken.labels
    if broken.replayed and broken.origin is None and labels is not None and not bool((labels >= 0).any()):
        yield NO_LABELS.finding(
            severity="fault",
            step=broken.step,
            where="batch",
            says=f"{broken.what}: none of the {labels.numel():,} positions has a label, a mean over nothing is 0/0.",
            cause="labels are masked entirely",
            fix="drop such batches, or divide by max(1, labels)",
            meant=None,
            evidence={"labels": 0},
        )
