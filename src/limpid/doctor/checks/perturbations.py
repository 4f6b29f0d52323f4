"""Exact perturbations: change one input, and see that what may not move does not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from limpid.doctor.checks.alignment import next_token_is_taught
from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding

HALVES = (
    ("the other rows", "row 0", slice(1, None), slice(0, 1)),
    ("row 0", "the other rows", slice(0, 1), slice(1, None)),
)
"""What is changed and what may not move: both ways, because a mask over rows hides one of them."""


def not_causal(exam: Exam) -> Iterator[Finding]:
    call = exam.probe
    if call is None or call.ids is None or call.ids.shape[1] < 3 or not next_token_is_taught(exam):
        return
    ids = call.ids
    j = ids.shape[1] // 2
    changed = ids.clone()
    changed[:, j] = exam.other_ids(ids)[:, j]
    moved = exam.moved(call, call.with_ids(changed))
    if moved is None or moved.shape[1] != ids.shape[1]:
        return
    before = moved[:, :j].amax(0)
    count = int((before > exam.rounding).sum())
    if not count:
        return
    yield Finding(
        rule="not-causal",
        severity="fault",
        where=exam.info.first_mixing,
        says=f"changing token {j} changes the outputs of {'all ' if count == j else ''}{count} of {j} earlier "
        f"positions (by up to {float(before.max()):.2g}, rounding {exam.rounding:.0e}), though each is taught a later "
        "token: the model sees its answers.",
        cause="no causal mask in attention (or a normalisation or convolution over positions)",
        fix="is_causal=True, or a lower-triangular mask",
        refuted_by="no output before a changed token moves beyond rounding",
        evidence={"moved": float(before.max()), "rounding": exam.rounding, "positions": count, "changed": j},
    )


def batch_leaks(exam: Exam) -> Iterator[Finding]:
    call = exam.probe
    if call is None or call.ids is None or call.ids.shape[0] < 2:
        return
    for training, (what, whose, rows, kept) in itertools.product((False, True), HALVES):
        changed = call.ids.clone()
        changed[rows] = exam.other_ids(call.ids)[rows]
        moved = exam.moved(call, call.with_ids(changed), training)
        if moved is None or float(moved[kept].max()) <= exam.rounding:
            continue
        norms = bool(exam.info.batch_norms) and training
        experts = any("expert" in name or "router" in name for name, _ in exam.model.named_modules())
        # statistics over rows and positions show a language model the tokens that it is to predict
        chosen = experts or (norms and not next_token_is_taught(exam))
        yield Finding(
            rule="batch-leaks",
            severity="notice" if chosen else "warning" if norms else "fault",
            where=whose,
            says=f"changing {what} of the batch moves the logits of {whose} by {float(moved[kept].max()):.2g} "
            f"(rounding {exam.rounding:.0e}){' in training mode' if training else ''}.",
            cause="batch norm: its mean and variance are taken over rows and over positions yet to be predicted"
            if norms
            else "experts with a capacity"
            if experts
            else "an operation mixes rows: a wrong view, transpose or axis",
            fix="layer norm"
            if norms
            else "look for .view/.reshape across the batch axis, batch_first=True, softmax or norm over dim 0",
            refuted_by="logits that do not move",
            evidence={"moved": float(moved[kept].max()), "rounding": exam.rounding},
        )
        return


def documents_see_each_other(exam: Exam) -> Iterator[Finding]:
    """Positions that start again inside a row declare a new document; a change before must not reach it."""
    call = exam.probe
    if call is None or call.ids is None or call.positions is None:
        return
    positions, ids = call.positions[:1].expand(len(call.ids), -1), call.ids
    starts = ((positions[0, 1:] == 0) & (positions[0, :-1] > 0)).nonzero()
    if not len(starts):
        return
    border = int(starts[0]) + 1
    changed = ids.clone()
    changed[:, :border] = exam.other_ids(ids)[:, :border]
    moved = exam.moved(call, call.with_ids(changed))
    if moved is not None and float(moved[:, border:].max()) > exam.rounding:
        yield Finding(
            rule="documents-see-each-other",
            severity="warning",
            where=f"position {border} on",
            says=f"changing the document before position {border} moves the logits of the next one by "
            f"{float(moved[:, border:].max()):.2g} (rounding: {exam.rounding:.0e}), though positions start again "
            "there.",
            cause="packed documents share one attention",
            fix="a block-diagonal mask, or a kernel for packed sequences",
            refuted_by="logits that do not move",
            evidence={"moved": float(moved[:, border:].max()), "border": border},
        )


EXAM = [not_causal, batch_leaks, documents_see_each_other]
