"""Alignment before the first step and in it: which token each position is taught."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding
from limpid.doctor.loss_gradient import LossGradient

OFFSETS = (1, 0, 2, -1, 3, -2, 4, -3)


def pairs(ids: Tensor, labels: Tensor, offset: int) -> tuple[float, int]:
    """Share of the labelled positions whose label is the input `offset` further on, and how many count."""
    length = min(ids.shape[1], labels.shape[1])
    first, last = max(0, -offset), min(length, length - offset)
    if last <= first:
        return 0.0, 0
    y, x = labels[:, first:last], ids[:, first + offset : last + offset]
    kept = y >= 0
    return (float((y == x)[kept].double().mean()), int(kept.sum())) if bool(kept.any()) else (0.0, 0)


def alignment(exam: Exam) -> Iterator[Finding]:
    """Which input each position is taught: by the gradient where there is one, else by the labels themselves."""
    if exam.loss_gradients:
        for reading in exam.loss_gradients[:1]:
            yield from aligned(reading, None)
        return
    for micro in exam.micros[:1]:
        if micro.ids is None or micro.labels is None or micro.ids.shape != micro.labels.shape:
            continue
        own = hasattr(micro.given, "keys")  # a model that is given labels by name shifts them itself
        matches = {k: pairs(micro.ids, micro.labels, k - own) for k in OFFSETS}
        yield from misaligned({k: m for k, (m, n) in matches.items() if n}, micro.labels.numel(), None)


def aligned(reading: LossGradient, step: int | None) -> Iterator[Finding]:
    """Alignment by the gradient: what was really taught, whatever the code looks like."""
    if reading.ids is None or reading.misfit_squashed > 0.5:
        return
    matches = {k: reading.match(k) for k in OFFSETS}
    taught = torch.where(reading.labelled, reading.taught, -1)
    other = None
    if reading.complete:
        other = another_row(reading.ids, taught.view(reading.ids.shape))
    exact = reading.misfit < 0.05  # other objectives teach no token in particular
    dense = exact and float(reading.labelled.double().mean()) > 0.5 and int(reading.ids.max()) < reading.shape[-1]
    yield from misaligned(
        {k: m for k, (m, n) in matches.items() if n >= 8}, int(reading.labelled.sum()), step, other, dense
    )


def another_row(ids: Tensor, taught: Tensor) -> float | None:
    """Match with the next tokens of the best other row, if most rows have one to 99 %."""
    best = []
    for row in range(min(len(ids), 8)):
        kept = taught[row, :-1] >= 0
        if int(kept.sum()) < 8:
            continue
        shares = (ids[:, 1:][:, kept] == taught[row, :-1][kept]).double().mean(-1)
        shares[row] = 0
        best.append(float(shares.max()))
    return min(best) if len(best) > 1 and min(best) >= 0.99 else None


def misaligned(
    matches: dict[int, float], labels: int, step: int | None, other: float | None = None, dense: bool = False
) -> Iterator[Finding]:
    """Findings from matches by offset; `other`: match with the best other row, `dense`: whether most have labels."""
    right = matches.get(1, 0.0)
    best = max(matches, key=lambda k: (matches[k], -abs(k - 1)), default=1)
    if best != 1 and matches[best] >= 0.99 and right < 0.99 and labels >= 8:
        evidence = {f"match_at_{k}": round(m, 4) for k, m in matches.items()}
        if best == 0:
            yield Finding(
                rule="labels-not-shifted",
                severity="fault",
                step=step,
                where="targets",
                says=f"the target of each position is its own input token (offset 0: {matches[0]:.0%} of {labels:,} "
                f"labels, the next token: {right:.0%}): the model learns to copy.",
                cause="labels are the inputs, not shifted by one",
                fix="targets[t] = inputs[t + 1]: shift once, in the data or in the loss",
                refuted_by="a match of 99 % with the next token",
                evidence=evidence,
            )
        else:
            why = (
                "the labels are shifted twice: in the data and again in the loss"
                if best == 2
                else "the labels are shifted the wrong way or by the wrong amount"
            )
            yield Finding(
                rule="labels-misaligned",
                severity="fault",
                step=step,
                where="targets",
                says=f"each position is taught the token {best:+d} places from it ({matches[best]:.0%} of {labels:,} "
                f"labels), not the next one ({right:.0%}).",
                cause=why,
                fix="shift exactly once: models of transformers shift labels themselves",
                refuted_by="a match of 99 % with the next token",
                evidence=evidence,
            )
    elif matches and max(matches.values()) < 0.5 and labels >= 64:
        where = "" if other is None else f", but the next tokens of another row ({other:.0%})"
        yield Finding(
            rule="targets-unrelated",
            severity="fault" if other is not None else "warning" if dense else "notice",
            step=step,
            where="targets",
            says="the targets are no shift of the inputs of their row (best match "
            f"{max(matches.values()):.0%}){where}.",
            cause="another objective than the next token, or inputs and targets of different texts"
            if other is None
            else "one side was shuffled or sorted without the other",
            fix="if this is a language model: take both from one row",
            sure=0.6 if other is None else 1.0,
            refuted_by="a match of 99 % with the next token",
            evidence={f"match_at_{k}": round(m, 4) for k, m in matches.items()},
        )


def next_token_is_taught(exam: Exam) -> bool:
    """Whether each position is taught a token that lies after it, so that no output may see one.

    By the gradient where there is one; else by the labels; with no labels at all, when the model says so itself.
    """
    for reading in exam.loss_gradients:
        if reading.ids is not None:
            return max(reading.match(1)[0], reading.match(2)[0], reading.match(3)[0]) >= 0.9
    for micro in exam.micros:
        if micro.ids is not None and micro.labels is not None and micro.ids.shape == micro.labels.shape:
            later = max(pairs(micro.ids, micro.labels, k)[0] for k in (1, 2, 3))
            own = pairs(micro.ids, micro.labels, 0)[0] >= 0.99 and hasattr(micro.given, "keys")
            return later >= 0.9 or (own and _decodes(exam))
    return _decodes(exam)


def _decodes(exam: Exam) -> bool:
    """Whether the model calls itself a decoder."""
    kind = type(exam.model).__name__.lower()
    if any(word in kind for word in ("causallm", "lmhead", "gpt", "llama")):
        return True
    if any(word in kind for word in ("masked", "bert", "encoder")):
        return False
    return type(exam.model).__module__.startswith("limpid.")


EXAM = [alignment]
