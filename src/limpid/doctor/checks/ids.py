"""Token ids against the vocabulary: out of range, or wrapped by a narrow type."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from limpid.doctor.calls import IGNORED, Call, is_ids
from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding
from limpid.doctor.model_info import ModelInfo


def ids_in_range(exam: Exam) -> Iterator[Finding]:
    vocab = exam.vocab
    table = None if exam.info.embedding is None else int(exam.info.embedding[1].shape[0])
    for micro in exam.micros:
        for what, values, size in (("inputs", micro.ids, table or vocab), ("labels", micro.labels, vocab or table)):
            if values is None or (what == "labels" and exam.plain is not None and values.ndim + 1 != exam.plain.ndim):
                continue  # none, or something else than a label for each output
            if size:
                yield from out_of_range(what, values, size, None)
        if exam.refused and micro.labels is not None and "Target" in exam.refused:
            odd = [int(v) for v in micro.labels.unique() if v < 0]
            yield Finding(
                rule="ids-out-of-range",
                severity="fault",
                where="labels",
                says=f"the loss refuses these labels ({exam.refused}): masked ones are {', '.join(map(str, odd))}, "
                "which it does not ignore.",
                cause="labels are masked with another number than the loss's ignore_index",
                fix=f"mask with {IGNORED}, or pass ignore_index to the loss",
                refuted_by="a loss that accepts them",
                evidence={"labels": odd},
            )


def ids_of_call(info: ModelInfo, call: Call, step: int) -> Iterator[Finding]:
    """Ids and labels that a call is about to hand over, where looking at them costs no wait for a device."""
    table = None if info.embedding is None else int(info.embedding[1].shape[0])
    if table is None:
        return
    if call.ids is not None and call.ids.device.type == "cpu" and call.ids.numel():
        yield from out_of_range("inputs", call.ids, table, step)
    named = call.kwargs.get("labels")
    if (
        isinstance(named, Tensor)
        and is_ids(named)
        and not named.is_cuda
        and named.numel()
        and call.ids is not None
        and named.shape == call.ids.shape
    ):
        yield from out_of_range("labels", named, table, step)


def classes_of_loss(given: Any, target: Any, step: int) -> Iterator[Finding]:
    """Classes that cross-entropy is about to look for, on the CPU."""
    if not isinstance(given, Tensor) or not isinstance(target, Tensor) or target.device.type != "cpu":
        return
    if target.is_floating_point():
        return
    classes = given.shape[1] if given.ndim > 1 else len(given)
    if target.numel() and int(target.max()) >= classes:
        yield from out_of_range("labels", target.clamp(min=0), classes, step)


def out_of_range(what: str, values: Tensor, size: int, step: int | None) -> Iterator[Finding]:
    low, high = int(values.min()), int(values.max())
    odd = low < 0 and (what == "inputs" or bool(((values < 0) & (values != IGNORED) & (values != -1)).any()))
    if high >= size or odd:
        worst = high if high >= size else low
        yield Finding(
            rule="ids-out-of-range",
            severity="fault",
            step=step,
            where=what,
            says=f"{what} hold id {worst}, but the model knows 0 … {size - 1}.",
            cause="another tokenizer than the model's, added tokens without resizing the embedding, or a wrapped type",
            fix="model.resize_token_embeddings(len(tokenizer)), or the model's own tokenizer",
            refuted_by=f"all ids within 0 … {size - 1}",
            evidence={"smallest": low, "largest": high, "rows": size},
        )


def ids_wrapped(exam: Exam) -> Iterator[Finding]:
    ids = [micro.ids.flatten().cpu() for micro in exam.micros if micro.ids is not None]
    table = None if exam.info.embedding is None else int(exam.info.embedding[1].shape[0])
    if ids and table:
        everything = torch.cat(ids)
        yield from wrapped(int(everything.max()), len(everything), len(everything.unique()), table, None)


def wrapped(high: int, count: int, distinct: int, vocab: int, step: int | None) -> Iterator[Finding]:
    """No id above a type's maximum in many tokens, although the vocabulary goes on far beyond it."""
    for bits in (8, 16):
        limit = 2**bits
        if vocab <= limit * 1.25 or high >= limit:
            continue
        # share of tokens above the limit in a Zipf law over V types: 1 - H(limit)/H(V)
        beyond = 1 - (math.log(limit) + 0.577) / (math.log(vocab) + 0.577)
        expected = count * beyond
        if expected < 14 or high < limit * 0.9:  # e^-14 = 1e-6; a corpus of few low ids is another thing
            return
        dense = distinct > 0.5 * min(limit, count / 4)
        yield Finding(
            rule="ids-wrapped",
            severity="fault" if dense else "warning",
            step=step,
            where="inputs",
            says=f"no id above {limit - 1} in {count:,} tokens although the vocabulary has {vocab:,}: {expected:,.0f} "
            f"would be expected; ids were stored in {bits} bits and wrapped.",
            cause=f"tokens were written or read as uint{bits}",
            fix=f"store ids in {'16' if vocab <= 65536 else '32'} bits and read them with the same type",
            sure=0.95 if dense else 0.7,
            refuted_by=f"one id above {limit - 1}",
            evidence={
                "largest": high,
                "tokens": count,
                "distinct": distinct,
                "vocab": vocab,
                "expected_above": expected,
            },
        )
        return


EXAM = [ids_in_range, ids_wrapped]
