"""Exact perturbations: change one input, and see that what may not move does not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step
from limpid.doctor.rules.labels import labelled_positions, later_by, next_token_is_taught

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.calls import Call
    from limpid.doctor.exam import Exam

FAMILY = "leaks"
ROUNDING = "rounding: 32 u max|logit|, u the largest unit round-off of the formats seen in the forward pass"
NEEDS = (Probe.PARAMETERS, Probe.BATCH, Probe.FORWARD)

NOT_CAUSAL = Rule(
    "not-causal",
    FAMILY,
    detects="An output that moves when a later token changes.",
    equation=r"\partial\, \text{logits}_i / \partial x_j = 0 \;\text{for}\; j > i",
    source="Vaswani et al. 2017, section 3.2.3, arXiv:1706.03762; exact perturbation",
    threshold=f"{ROUNDING}; asked only of outputs with a label, where targets are later tokens; nobody "
    "means it where the output that is taught the changed token moves",
    cost="two forward passes before the first step",
    needs=(*NEEDS, Probe.BACKWARD, Probe.LOSS_GRADIENT),
    cause="no causal mask in attention (or a normalisation or convolution over positions)",
    fix="is_causal=True, or a lower-triangular mask",
    refuted_by="no output before a changed token moves beyond rounding",
    explains=("loss-below-floor", "documents-see-each-other"),
    again=True,
)

BATCH_LEAKS = Rule(
    "batch-leaks",
    FAMILY,
    detects="A sequence whose output changes with the other sequences of its batch.",
    equation=r"\partial\, \text{logits}(\text{row } 0) / \partial x(\text{row } 1) = 0",
    source="definition; exact perturbation",
    threshold=f"{ROUNDING}, or {{share:.0%}} of the largest output; a warning for batch norm, a notice for experts "
    "with a capacity; nobody means it of models of language, nor where outputs move by more than {order:g} of the "
    "largest when all rows move on by one place, but where rows may be steps of time",
    cost="two forward passes for each of two halves and two modes, before the first step",
    needs=(*NEEDS, Probe.BACKWARD, Probe.LOSS_GRADIENT),
    thresholds={
        "share": Threshold(0.05, "of the largest output: a scale that rows share, to quantise them, moves 1 %"),
        "order": Threshold(1e-3, "of the largest output: rounding of sums in another order, and a little"),
    },
    cause="an operation mixes rows: a wrong view, transpose or axis",
    fix="look for .view/.reshape across the batch axis, batch_first=True, softmax or norm over dim 0",
    refuted_by="logits that do not move",
    again=True,
)

DOCUMENTS_SEE_EACH_OTHER = Rule(
    "documents-see-each-other",
    FAMILY,
    detects="Packed documents, declared separate by their positions, that attend to each other.",
    equation=r"\partial\, \text{logits}(\text{document } 2) / \partial x(\text{document } 1) \neq 0",
    source="trl PR#3526; exact perturbation",
    threshold=ROUNDING,
    cost="two forward passes before the first step",
    meant="packed training in which documents may see each other, as many recipes have it",
    needs=NEEDS,
    cause="packed documents share one attention",
    fix="a block-diagonal mask, or a kernel for packed sequences",
    refuted_by="logits that do not move",
    again=True,
)

ROWS_MEET = "rows that are to see each other: attention between them, sets, frames of one film, a batch's spread"
HALVES = (
    ("the other rows", "row 0", slice(1, None), slice(0, 1)),
    ("row 0", "the other rows", slice(0, 1), slice(1, None)),
)
"""What is changed and what may not move: both ways, because a mask over rows hides one of them."""


@before_first_step(NOT_CAUSAL)
def earlier_outputs(exam: Exam) -> Iterator[Finding]:
    call = exam.probe
    if call is None or call.ids is None or call.ids.shape[1] < 3 or not next_token_is_taught(exam):
        return
    ids = _read_by_outputs(exam, call)
    if ids is None:
        return
    j = ids.shape[1] // 2
    changed = ids.clone()
    changed[:, j] = exam.other_ids(ids)[:, j]
    moved = exam.moved(call, call.with_ids(changed, ids))
    if moved is None or moved.shape[1] != ids.shape[1]:
        return
    before = moved.masked_fill(~labelled_positions(exam, moved), 0.0)[:, :j].amax(0)
    count = int((before > exam.rounding).sum())
    answered = j - later_by(exam)  # the position that is taught token j
    seen = not bool(labelled_positions(exam, moved)[:, answered].any()) or float(before[answered]) > exam.rounding
    if count:
        yield NOT_CAUSAL.finding(
            severity="fault",
            where=exam.info.first_mixing,
            says=f"changing token {j} changes the outputs of {'all ' if count == j else ''}{count} of {j} earlier "
            f"positions (by up to {float(before.max()):.2g}, rounding {exam.rounding:.0e}), though each is taught a "
            f"later token{': the model sees its answers' if seen else ', and not by token ' + str(j) + ' at its own'}.",
            meant=None if seen else "a cloze: outputs that see what stands on both sides, and not their own answer",
            evidence={"moved": float(before.max()), "rounding": exam.rounding, "positions": count, "changed": j},
        )


def _read_by_outputs(exam: Exam, call: Call) -> Tensor | None:
    """The token ids whose next ones the outputs are taught: a decoder's own, where an encoder reads others."""
    if len(call.all_ids) < 2 or not exam.loss_gradients or exam.loss_gradients[0].ids is None:
        return call.ids
    own = exam.loss_gradients[0].ids
    alike = [ids for ids in call.all_ids if ids.shape[1] <= own.shape[1] and len(ids) <= len(own)]
    return next((ids for ids in alike if bool((ids.cpu() == own[: len(ids), : ids.shape[1]]).all())), None)


@before_first_step(BATCH_LEAKS)
def other_rows(exam: Exam) -> Iterator[Finding]:
    call = exam.probe
    if exam.later:  # observers of quantisation share a scale by then
        return
    if call is None or call.ids is None or call.ids.shape[0] < 2:
        return
    for training, (what, whose, rows, kept) in itertools.product((False, True), HALVES):
        changed = call.ids.clone()
        changed[rows] = exam.other_ids(call.ids)[rows]
        moved = exam.moved(call, call.with_ids(changed), training)
        if moved is not None and float(moved[kept].max()) > exam.rounding:
            yield _leak(exam, what, whose, float(moved[kept].max()), training)
            return


@before_first_step(BATCH_LEAKS)
def other_samples(exam: Exam) -> Iterator[Finding]:
    """Sequences, pictures and texts whose outputs are one row each: who reads the wrong axis mixes them."""
    call = exam.usual_call
    if call is None or not exam.may_call or exam.info.translates or exam.later:
        return
    if exam.plain is not None and exam.plain.ndim != 2:
        return
    call = call.without_loss()
    plain = exam.output(call)
    if plain is None or plain.ndim != 2 or len(plain) < 2 or plain.shape[1] == len(plain):
        return  # a score of each row with each other is meant to have both
    size = max(float(plain.abs().max()), 1e-6)
    for what, whose, rows, kept in HALVES:
        changed = _changed(exam, call, len(plain), rows)
        again = None if changed is None else exam.output(changed)
        if again is None or again.shape != plain.shape:
            return
        moved = float((plain - again)[kept].abs().max())
        if moved > BATCH_LEAKS["share"] * size:
            yield _leak(exam, what, whose, moved, False, one_way=whose != "row 0")
            return


def _changed(exam: Exam, call: Call, count: int, rows: slice) -> Call | None:
    """The call with other values in some of its rows; None where it has no such rows."""

    def other(value: Tensor) -> Tensor:
        changed = value.clone()
        if len(value) == count:
            changed[rows] = exam.other_ids(value)[rows] if value.ndim == 2 else 0.5 * value[rows].roll(1, -1)
        return changed

    if call.ids is not None:
        return call.with_ids(other(call.ids)) if len(call.ids) == count else None
    given = [value for value in [*call.args, *call.kwargs.values()] if getattr(value, "ndim", 0) > 2]
    return call.with_values(other) if any(len(value) == count for value in given) else None


def rows_meet(exam: Exam, one_way: bool = False) -> str | None:
    """Who means rows that see each other; None where nobody does.

    On purpose they do so in any order, or one after the other in that of time: then later ones change no earlier one.
    """
    order_counts = not one_way and exam.row_probe.elsewhere > BATCH_LEAKS["order"]
    return None if next_token_is_taught(exam) or order_counts else ROWS_MEET


def _leak(exam: Exam, what: str, whose: str, moved: float, training: bool, one_way: bool = False) -> Finding:
    norms = bool(exam.info.batch_norms) and (training or exam.info.norms_of_the_batch)
    experts = exam.info.has_experts
    cause = fix = ""
    if norms:
        cause = "batch norm: its mean and variance are taken over rows and over positions yet to be predicted"
        fix = "layer norm"
    elif experts:
        cause = "experts with a capacity"
    # statistics over rows and positions show a language model the tokens that it is to predict
    chosen = experts or (norms and not next_token_is_taught(exam))
    return BATCH_LEAKS.finding(
        severity="notice" if chosen else "warning" if norms else "fault",
        where=whose,
        says=f"changing {what} of the batch moves the outputs of {whose} by {moved:.2g} (rounding "
        f"{exam.rounding if exam.rounding < math.inf else 1e-6:.0e}){' in training mode' if training else ''}.",
        cause=cause,
        fix=fix,
        meant="statistics of the whole batch, on purpose" if norms else rows_meet(exam, one_way),
        evidence={"moved": moved, "rounding": exam.rounding},
    )


@before_first_step(DOCUMENTS_SEE_EACH_OTHER)
def other_documents(exam: Exam) -> Iterator[Finding]:
    """Positions that start again inside a row declare a new document; a change before must not reach it."""
    import torch

    call = exam.probe
    if call is None or call.ids is None or call.positions is None:
        return
    positions, ids = call.positions.expand(len(call.ids), -1), call.ids
    starts = (positions[:, 1:] == 0) & (positions[:, :-1] > 0)
    if not bool(starts.any()):
        return
    borders = starts.int().argmax(1) + 1  # of the first document of each row
    first = torch.arange(ids.shape[1], device=ids.device) < borders[:, None]
    first &= starts.any(1)[:, None]
    moved = exam.moved(call, call.with_ids(torch.where(first, exam.other_ids(ids), ids)))
    if moved is None:
        return
    reached = moved.masked_fill(first, 0.0).amax(1)
    row = int(reached.argmax())
    if float(reached[row]) > exam.rounding:
        border = int(borders[row])
        yield DOCUMENTS_SEE_EACH_OTHER.finding(
            severity="warning",
            where=f"row {row}, position {border} on",
            says=f"changing the document before position {border} of row {row} moves the logits of the next one by "
            f"{float(reached[row]):.2g} (rounding: {exam.rounding:.0e}), though positions start again there.",
            evidence={"moved": float(reached[row]), "row": row, "border": border},
        )
