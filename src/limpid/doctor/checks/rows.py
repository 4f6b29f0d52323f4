"""The rows of a batch: without a label, doubled, begun twice."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from limpid.doctor.checks.padding import trailing_run
from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding


def no_labels(exam: Exam) -> Iterator[Finding]:
    for index, micro in enumerate(exam.micros):
        if micro.labels is not None and micro.labels.ndim == 2:
            yield from unlabelled(micro.labels, None, index if len(exam.micros) > 1 else None)


def unlabelled(labels: Tensor, step: int | None, index: int | None) -> Iterator[Finding]:
    counts = (labels >= 0).sum(-1)
    empty = int((counts == 0).sum())
    if not empty:
        return
    everything = empty == len(counts)
    where = "batch" if index is None else f"micro-batch {index}"
    yield Finding(
        rule="no-labels",
        severity="fault" if everything else "warning" if 2 * empty > len(counts) else "notice",
        step=step,
        where=where,
        says=f"{empty} of {len(counts)} rows of the {where} have no label"
        + (": a mean over nothing is 0/0 = NaN." if everything else ", so they teach nothing."),
        cause="labels are masked entirely: wrong template, or truncation cut the answer off",
        fix="drop such rows, or truncate the prompt instead of the answer",
        refuted_by="a label at or above 0",
        evidence={"rows": len(counts), "empty": empty},
    )


def rows_of_a_batch(exam: Exam) -> Iterator[Finding]:
    for micro in exam.micros[:1]:
        if micro.ids is None or len(micro.ids) < 4 or micro.ids.shape[1] < 8:
            continue
        ids = micro.ids.cpu()
        start = exam.info.declared("bos_token_id")
        same = bool((ids[:, 0] == ids[:, 1]).all()) and len(ids[:, 0].unique()) == 1
        text = bool((ids != ids[:, :1]).any())
        if same and text and (start is None or int(ids[0, 0]) == start) and not _left_padded(ids):
            yield Finding(
                rule="doubled-bos",
                severity="warning",
                where="position 0 and 1 of every row",
                says=f"every row begins with token {int(ids[0, 0])} twice.",
                cause="the template adds a start token, and so does the tokenizer",
                fix="tokenize templates with add_special_tokens=False",
                sure=0.9 if start is not None else 0.6,
                refuted_by="a row with another second token",
                evidence={"token": int(ids[0, 0]), "rows": len(ids)},
            )
        distinct = len(ids.unique(dim=0))
        if distinct <= len(ids) / 2:
            yield Finding(
                rule="rows-duplicated",
                severity="warning",
                where="batch",
                says=f"{len(ids)} rows of the batch are only {distinct} different ones.",
                cause="sampling with replacement from very little data, or an expanded batch",
                fix="shuffle once per epoch and take each row once",
                sure=0.8,
                refuted_by="different rows",
                evidence={"rows": len(ids), "distinct": distinct},
            )


def _left_padded(ids: Tensor) -> bool:
    return any(trailing_run(row.flip(0)) > 2 for row in ids)


EXAM = [no_labels, rows_of_a_batch]
