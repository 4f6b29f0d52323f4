"""Padding that is trained on, and ends of text that never are."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from limpid.doctor.calls import IGNORED
from limpid.doctor.checks.alignment import next_token_is_taught
from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding
from limpid.doctor.loss_gradient import LossGradient


def padding_trained_on(exam: Exam) -> Iterator[Finding]:
    for micro in exam.micros[:1]:
        if micro.ids is not None:
            taught = _taught(exam, micro.ids, micro.labels)
            if taught is not None:
                yield from padded(micro.ids, taught, micro.mask, None, exam.loss_gradients)


def mask_inverted(exam: Exam) -> Iterator[Finding]:
    """An attention mask that shows the padding and hides the text."""
    for micro in exam.micros[:1]:
        ids, mask = micro.ids, micro.mask
        if ids is None or mask is None or mask.shape != ids.shape or mask.is_floating_point():
            continue
        ids, seen = ids.cpu(), mask.cpu().bool()
        edges = torch.zeros_like(seen)
        for row, (run, head) in enumerate(zip(*_runs(ids), strict=True)):
            edges[row, ids.shape[1] - run :] = run >= 4
            edges[row, :head] |= head >= 4
        if bool(edges.any()):
            edges &= ids == ids[edges].mode().values  # text may begin with blanks
        padding, text = int(edges.sum()), int((~edges).sum())
        shown, hidden = int((edges & seen).sum()), int((~edges & ~seen).sum())
        if padding < 8 or shown < 0.9 * padding or hidden < 0.9 * text:
            continue
        yield Finding(
            rule="attention-mask-inverted",
            severity="fault",
            where="attention mask",
            says=f"the attention mask shows {shown} of {padding} positions of padding and hides {hidden} of "
            f"{text} of the text: it is the wrong way round.",
            cause="1 means 'attend' to models of transformers, 'ignore' to nn.MultiheadAttention's key_padding_mask",
            fix="mask = ids != pad, or ~mask",
            refuted_by="a mask that hides the padding",
            evidence={"padding": padding, "shown": shown, "text": text, "hidden": hidden},
        )


def padded(
    ids: Tensor, taught: Tensor, mask: Tensor | None, step: int | None, loss_gradients: list[LossGradient]
) -> Iterator[Finding]:
    """Labels inside a run of one token that ends (or begins) a row, or that the attention mask calls padding."""
    ids, taught = ids.cpu(), taught.cpu()
    if taught.shape != ids.shape or not bool((taught >= 0).any()):
        return
    runs = [trailing_run(row) for row in ids]
    heads = [trailing_run(row.flip(0)) for row in ids]
    ends = [int(row[-1]) for row, run in zip(ids, runs, strict=True) if run >= 4]
    starts = [int(row[0]) for row, run in zip(ids, heads, strict=True) if run >= 4]
    token = max(set(ends + starts), key=(ends + starts).count) if ends or starts else None
    masked = mask is not None and mask.ndim == 2 and mask.shape == ids.shape and not bool(mask.bool().all())
    if token is None and not masked:
        return
    if token is not None and not masked and not _is_padding(ids, token, runs, heads):
        return
    hidden = torch.zeros_like(taught, dtype=torch.bool)
    rows = 0
    length = ids.shape[1]
    for index, (run, head) in enumerate(zip(runs, heads, strict=True)):
        if run >= length or head >= length:
            continue
        if run >= 4 and int(ids[index, -1]) == token:
            # the position before the run may be taught the token once: that is an end of text
            hidden[index, length - run :] = taught[index, length - run :] == token
            rows += bool(hidden[index].any())
        elif head >= 4 and int(ids[index, 0]) == token:
            hidden[index, : head - 1] = taught[index, : head - 1] == token
            rows += bool(hidden[index].any())
    if masked and mask is not None:
        outside = ~mask.bool().cpu()
        following = torch.zeros_like(outside)
        following[:, :-1] = outside[:, 1:] & outside[:, :-1]
        following[:, -1] = outside[:, -1]
        hidden |= following & (taught >= 0)
        rows = max(rows, int((following & (taught >= 0)).any(1).sum()))
    labels = int((taught >= 0).sum())
    share = int(hidden.sum()) / labels
    if rows < 2 or share <= 0.01 or int(hidden.sum()) < 16:
        return
    evidence = {"share": share, "rows": rows, "token": token, "labels": labels}
    split = ""
    for reading in loss_gradients[:1]:
        if reading.complete and reading.surprise.numel() == taught.numel():
            surprise, kept = reading.surprise.cpu().view(taught.shape), taught >= 0
            on, off = (
                float(surprise[hidden].mean()),
                float(surprise[kept & ~hidden].mean()) if bool((kept & ~hidden).any()) else math.nan,
            )
            evidence |= {"loss_on_padding": on, "loss_on_text": off}
            split = f"; their loss is {on:.2f}, that of the text {off:.2f} nats"
    yield Finding(
        rule="padding-trained-on",
        severity="fault" if share > 0.05 else "warning",
        step=step,
        where=f"{rows} rows",
        says=f"{share:.0%} of the labels are padding (id {token} repeated to the edge of {rows} rows){split}.",
        cause="padded positions have labels",
        fix=f"set labels of padding to {IGNORED} (all but the first, where it marks the end of a text)",
        sure=0.95,
        refuted_by="labels below 0 at these positions",
        evidence=evidence,
    )


def _is_padding(ids: Tensor, token: int, runs: list[int], heads: list[int]) -> bool:
    """Whether a token that runs to the edges of rows is padding: it hardly occurs inside, or the runs are everywhere.

    (Text has runs too: a row of code may end in spaces, but spaces are everywhere in it.)
    """
    length = ids.shape[1]
    edge = [
        (run if int(row[-1]) == token else 0) + (head if int(row[0]) == token and head < length else 0)
        for row, run, head in zip(ids, runs, heads, strict=True)
    ]
    inside = int((ids == token).sum()) - sum(edge)
    others = ids.numel() - sum(edge)
    padded_rows = sum(run > 0 for run in edge)
    long = length >= 16  # short rows may well end in four blanks
    rare = (
        long and inside <= max(padded_rows, 0.01 * others) and padded_rows >= max(2, len(ids) / 20)
    )  # an end may share the id
    everywhere = sum(run >= 8 for run in edge) > len(ids) / 2
    return rare or everywhere


def end_never_a_label(exam: Exam) -> Iterator[Finding]:
    for micro in exam.micros[:1]:
        if micro.ids is None or not next_token_is_taught(exam):
            continue
        taught = _taught(exam, micro.ids, micro.labels)
        if taught is None or taught.shape != micro.ids.shape:
            continue
        ids, taught = micro.ids.cpu(), taught.cpu()
        yield from endless(ids, taught, exam.info.declared("eos_token_id"))


def endless(ids: Tensor, taught: Tensor, declared: object) -> Iterator[Finding]:
    """Texts that end inside their rows, in padding, without a token for the end that is ever a label."""
    ended = []  # rows that end in padding, and their last token before it
    for i, row in enumerate(ids):
        run = trailing_run(row)
        if 2 <= run < len(row) and bool((taught[i] >= 0).any()):
            ended.append((i, int(row[-1]), int(row[len(row) - run - 1])))
    padding = {token for _, token, _ in ended}
    if len(ended) < 3 or len(padding) != 1:
        return
    (pad,) = padding
    if int((taught == pad).sum()) or not _is_padding(ids, pad, *_runs(ids)):
        return
    last = {token for _, _, token in ended}
    if len(last) == 1 and bool((taught == next(iter(last))).any()):
        return  # an end of its own, and it is learned
    known = isinstance(declared, int) and declared == pad
    yield Finding(
        rule="end-never-a-label",
        severity="warning",
        where=f"token {pad}",
        says=f"{len(ended)} texts end in padding (id {pad}), and neither that id nor another end of text is ever a "
        "label: the model cannot learn to stop.",
        cause="padding and end of text share an id, and every one of them is masked"
        if known or len(last) > 1
        else "the end of text is masked",
        fix="label the first end token after each text, or give padding an id of its own",
        sure=0.95 if known else 0.8,
        refuted_by="one label with this id",
        evidence={"token": pad, "texts": len(ended)},
    )


def trailing_run(row: Tensor) -> int:
    """Length of the run of one token that ends a row."""
    different = (row != row[-1]).nonzero()
    return len(row) if not len(different) else len(row) - 1 - int(different[-1])


def _runs(ids: Tensor) -> tuple[list[int], list[int]]:
    """Lengths of the runs that end, and that begin, each row."""
    return [trailing_run(row) for row in ids], [trailing_run(row.flip(0)) for row in ids]


def _taught(exam: Exam, ids: Tensor, labels: Tensor | None) -> Tensor | None:
    """What each position is taught, (row, position); negative where nothing."""
    for reading in exam.loss_gradients[:1]:
        if reading.complete and reading.ids is not None and reading.ids.shape == ids.shape:
            return torch.where(reading.labelled, reading.taught, -1).view(ids.shape).cpu()
    return labels


EXAM = [mask_inverted, padding_trained_on, end_never_a_label]
