"""Token ids and labels beyond what the model knows: on the host an error, on a device the end of the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, before_first_step, on_step

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.calls import Call
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.model_info import ModelInfo
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "ids_in_range"
IGNORED = -100

OUT_OF_RANGE = Rule(
    "ids-out-of-range",
    FAMILY,
    detects="Token ids or labels that are negative or beyond the vocabulary.",
    equation=r"0 \le x < V",
    source="definition; transformers#24698",
    threshold="exact: ids that the table is asked for, labels of a cross-entropy, or a forward pass that fails; "
    "ids that a model is given, and may fold itself, are asked about",
    cost="one minimum and maximum per batch",
    needs=(Probe.PARAMETERS, Probe.BATCH, Probe.FORWARD, Probe.LOSS_INPUTS),
    cause="another tokenizer than the model's, added tokens without resizing the embedding, or a wrapped type",
    fix="model.resize_token_embeddings(len(tokenizer)), or the model's own tokenizer",
    meant="a model that folds ids into its table itself: hashing, copying from its source",
    explains=("not-finite",),
)


@before_first_step(OUT_OF_RANGE)
def in_range(exam: Exam) -> Iterator[Finding]:
    vocab, table = exam.vocab, exam.info.table_rows
    for micro in exam.micros:
        if micro.ids is not None and (table or vocab):
            yield from _out_of_range("inputs", micro.ids, table or vocab, None, is_certain="IndexError" in exam.refused)
        labels = micro.labels
        accepted = exam.trial is not None and not exam.refused  # by a loss, which may ignore a number of its own
        each_output = exam.plain is None or (labels is not None and labels.ndim + 1 == exam.plain.ndim)
        if labels is not None and each_output and (vocab or table) and not accepted:  # a label for each output
            yield from _out_of_range("labels", labels, vocab or table, None, is_certain=True)
        if exam.refused and labels is not None and "Target" in exam.refused:
            odd = [int(value) for value in labels.unique() if value < 0]
            yield OUT_OF_RANGE.finding(
                severity="fault",
                where="labels",
                says=f"the loss refuses these labels ({exam.refused}): masked ones are {', '.join(map(str, odd))}, "
                "which it does not ignore.",
                meant=None,
                cause="labels are masked with another number than the loss's ignore_index",
                fix=f"mask with {IGNORED}, or pass ignore_index to the loss",
                refuted_by="a loss that accepts them",
                evidence={"labels": odd},
            )


@on_step(OUT_OF_RANGE)
def in_range_in_step(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    table = watched.info.table_rows
    for call in record.calls if table and history.rows.arrays else ():
        elsewhere = call.ids is not None and call.ids.device.type != "cpu"  # `ids_of_call` has looked at the host's
        ids = record.host(call.ids) if elsewhere and call.ids is not None else None
        if ids is not None:
            yield from _out_of_range("inputs", ids, table, record.number)


def ids_of_call(info: ModelInfo, call: Call, record: StepRecord) -> Iterator[Finding]:
    """Ids and labels that a call is about to hand over: on a device those of a step's first pass, before any wait."""
    table = info.table_rows
    if table is None or call.ids is None:
        return
    ids, labels = (record.ahead(one, idle=not record.calls) for one in (call.ids, call.named_labels))
    if ids is not None and ids.numel():
        yield from _out_of_range("inputs", ids, table, record.number)
    if labels is not None and labels.numel() and labels.shape == call.ids.shape:
        yield from _out_of_range("labels", labels, table, record.number)


def looked_up(ids: Any, info: ModelInfo, record: StepRecord) -> Iterator[Finding]:
    """Ids that the token table is asked for, before it is; of a device they are waited for."""
    import torch

    if isinstance(ids, torch.Tensor) and not ids.is_floating_point() and ids.numel():
        yield from _out_of_range("inputs", ids, info.table_rows, record.number, is_certain=True)


def classes_of_loss(given: Any, target: Any, ignored: int | None, record: StepRecord) -> Iterator[Finding]:
    """Classes that cross-entropy is about to look for; on a device on the steps that are looked at closer."""
    import torch

    if not isinstance(given, torch.Tensor) or not isinstance(target, torch.Tensor) or target.is_floating_point():
        return
    labels, classes = record.ahead(target), given.shape[1] if given.ndim > 1 else len(given)
    if labels is not None and ignored is not None and ignored >= classes:
        labels = labels[labels != ignored]
    if labels is not None and labels.numel() and int(labels.max()) >= classes:
        yield from _out_of_range("labels", labels.clamp(min=0), classes, record.number, is_certain=True)


def lost_device(error: BaseException, info: ModelInfo, record: StepRecord) -> Finding:
    """What most likely has stopped the device; it is asked nothing."""
    table = info.table_rows
    known = f"0 … {table - 1}" if table else "the embedding"
    right = bool(record.calls) and all(record.has_read(call.ids) for call in record.calls if call.ids is not None)
    inputs = f"an id outside of {known}, or" if not right else f"no id, for all are within {known}, but"
    return OUT_OF_RANGE.finding(
        severity="fault",
        step=record.number,
        where="labels" if right else "inputs or labels",
        says=f"a kernel of the device has stopped it ({type(error).__name__}, device-side assert), as an index does "
        f"that lies outside of what it looks in: most likely {inputs} a label beyond the classes. Nothing that lies "
        "there can be read any more.",
        cause="another tokenizer than the model's, added tokens without resizing the embedding, or masked labels other "
        f"than {IGNORED}",
        meant=None,
        fix="run this batch on the CPU, or all of it with CUDA_LAUNCH_BLOCKING=1: the error then names the operation",
        sure=0.8,
        refuted_by="a batch that runs on the CPU",
        evidence={"rows": table},
    )


def _out_of_range(
    what: str, values: Tensor, size: int | None, step: int | None, is_certain: bool = False
) -> Iterator[Finding]:
    """A finding of values outside of 0 … size - 1.

    is_certain  whether they are what is looked up, not what a model may make something else of
    """
    low, high = int(values.min()), int(values.max())
    odd = low < 0 and (what == "inputs" or bool(((values < 0) & (values != IGNORED) & (values != -1)).any()))
    if size is not None and (high >= size or odd):
        yield OUT_OF_RANGE.finding(
            severity="fault",
            step=step,
            where=what,
            says=f"{what} hold id {high if high >= size else low}, but the model knows 0 … {size - 1}.",
            meant=None if is_certain else "",
            refuted_by=f"all ids within 0 … {size - 1}",
            evidence={"smallest": low, "largest": high, "rows": size},
        )
