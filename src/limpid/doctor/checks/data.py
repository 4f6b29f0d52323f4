"""Data: what a batch holds, before the first step and in it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from limpid.doctor.calls import IGNORED
from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding
from limpid.doctor.reading import Reading

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
    if exam.readings:
        for reading in exam.readings[:1]:
            yield from aligned(reading, None)
        return
    for micro in exam.micros[:1]:
        if micro.ids is None or micro.labels is None or micro.ids.shape != micro.labels.shape:
            continue
        own = hasattr(micro.given, "keys")  # a model that is given labels by name shifts them itself
        matches = {k: pairs(micro.ids, micro.labels, k - own) for k in OFFSETS}
        yield from misaligned({k: m for k, (m, n) in matches.items() if n}, micro.labels.numel(), None)


def aligned(reading: Reading, step: int | None) -> Iterator[Finding]:
    """Alignment by the gradient: what was really taught, whatever the code looks like."""
    if reading.ids is None or reading.misfit_squashed > 0.5:
        return
    matches = {k: reading.match(k) for k in OFFSETS}
    taught = torch.where(reading.labelled, reading.taught, -1)
    other = None
    if reading.complete:
        other = another_row(reading.ids, taught.view(reading.ids.shape))
    dense = float(reading.labelled.double().mean()) > 0.5 and int(reading.ids.max()) < reading.shape[-1]
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
                sure=1.0,
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
                says=f"each position is taught the token {best:+d} places from it ({matches[best]:.0%} of "
                f"{labels:,} labels), "
                f"not the next one ({right:.0%}).",
                cause=why,
                fix="shift exactly once: models of transformers shift labels themselves",
                sure=1.0,
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


def trailing_run(row: Tensor) -> int:
    """Length of the run of one token that ends a row."""
    different = (row != row[-1]).nonzero()
    return len(row) if not len(different) else len(row) - 1 - int(different[-1])


def padding_trained_on(exam: Exam) -> Iterator[Finding]:
    for micro in exam.micros[:1]:
        if micro.ids is not None:
            taught = _taught(exam, micro.ids, micro.labels)
            if taught is not None:
                yield from padded(micro.ids, taught, micro.mask, None, exam.readings)


def _taught(exam: Exam, ids: Tensor, labels: Tensor | None) -> Tensor | None:
    """What each position is taught, (row, position); negative where nothing."""
    for reading in exam.readings[:1]:
        if reading.complete and reading.ids is not None and reading.ids.shape == ids.shape:
            return torch.where(reading.labelled, reading.taught, -1).view(ids.shape).cpu()
    return labels


def padded(
    ids: Tensor, taught: Tensor, mask: Tensor | None, step: int | None, readings: list[Reading]
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
    if rows < 2 or share <= 0.01:
        return
    evidence = {"share": share, "rows": rows, "token": token, "labels": labels}
    split = ""
    for reading in readings[:1]:
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
    rare = inside <= max(padded_rows, 0.01 * others) and padded_rows >= max(2, len(ids) / 20)  # an end may share the id
    everywhere = sum(run >= 8 for run in edge) > len(ids) / 2
    return rare or everywhere


def end_never_a_label(exam: Exam) -> Iterator[Finding]:
    for micro in exam.micros[:1]:
        if micro.ids is None:
            continue
        taught = _taught(exam, micro.ids, micro.labels)
        if taught is None or taught.shape != micro.ids.shape:
            continue
        ids, taught = micro.ids.cpu(), taught.cpu()
        yield from endless(ids, taught, exam.anatomy.declared("eos_token_id"))


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
        step=None,
        where=f"token {pad}",
        says=f"{len(ended)} texts end in padding (id {pad}), and neither that id nor another end of text is "
        "ever a label: the "
        "model cannot learn to stop.",
        cause="padding and end of text share an id, and every one of them is masked"
        if known or len(last) > 1
        else "the end of text is masked",
        fix="label the first end token after each text, or give padding an id of its own",
        sure=0.95 if known else 0.8,
        refuted_by="one label with this id",
        evidence={"token": pad, "texts": len(ended)},
    )


def _runs(ids: Tensor) -> tuple[list[int], list[int]]:
    """Lengths of the runs that end, and that begin, each row."""
    return [trailing_run(row) for row in ids], [trailing_run(row.flip(0)) for row in ids]


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
        sure=1.0,
        refuted_by="a label at or above 0",
        evidence={"rows": len(counts), "empty": empty},
    )


def ids_in_range(exam: Exam) -> Iterator[Finding]:
    vocab = exam.vocab
    table = None if exam.anatomy.embedding is None else int(exam.anatomy.embedding[1].shape[0])
    for micro in exam.micros:
        for what, values, size in (("inputs", micro.ids, table or vocab), ("labels", micro.labels, vocab or table)):
            if values is not None and size:
                yield from out_of_range(what, values, size, None)
        if exam.refused and micro.labels is not None and "Target" in exam.refused:
            odd = [int(v) for v in micro.labels.unique() if v < 0]
            yield Finding(
                rule="ids-out-of-range",
                severity="fault",
                step=None,
                where="labels",
                says=f"the loss refuses these labels ({exam.refused}): masked ones are "
                f"{', '.join(map(str, odd))}, which it does not "
                "ignore.",
                cause="labels are masked with another number than the loss's ignore_index",
                fix=f"mask with {IGNORED}, or pass ignore_index to the loss",
                sure=1.0,
                refuted_by="a loss that accepts them",
                evidence={"labels": odd},
            )


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
            sure=1.0,
            refuted_by=f"all ids within 0 … {size - 1}",
            evidence={"smallest": low, "largest": high, "rows": size},
        )


def ids_wrapped(exam: Exam) -> Iterator[Finding]:
    ids = [micro.ids.flatten().cpu() for micro in exam.micros if micro.ids is not None]
    table = None if exam.anatomy.embedding is None else int(exam.anatomy.embedding[1].shape[0])
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
            says=f"no id above {limit - 1} in {count:,} tokens although the vocabulary has {vocab:,}: "
            f"{expected:,.0f} would be expected; ids were stored in {bits} bits and wrapped.",
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


def rows_of_a_batch(exam: Exam) -> Iterator[Finding]:
    for micro in exam.micros[:1]:
        if micro.ids is None or len(micro.ids) < 4 or micro.ids.shape[1] < 8:
            continue
        ids = micro.ids.cpu()
        start = exam.anatomy.declared("bos_token_id")
        same = bool((ids[:, 0] == ids[:, 1]).all()) and len(ids[:, 0].unique()) == 1
        text = bool((ids != ids[:, :1]).any())
        if same and text and (start is None or int(ids[0, 0]) == start) and not _left_padded(ids):
            yield Finding(
                rule="doubled-bos",
                severity="warning",
                step=None,
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
                step=None,
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
            step=None,
            where=f"position {border} on",
            says=f"changing the document before position {border} moves the logits of the next one by "
            f"{float(moved[:, border:].max()):.2g} (rounding: {exam.rounding:.0e}), though positions start "
            "again there.",
            cause="packed documents share one attention",
            fix="a block-diagonal mask, or a kernel for packed sequences",
            sure=1.0,
            refuted_by="logits that do not move",
            evidence={"moved": float(moved[:, border:].max()), "border": border},
        )


EXAM = [
    alignment,
    padding_trained_on,
    end_never_a_label,
    no_labels,
    ids_in_range,
    ids_wrapped,
    rows_of_a_batch,
    documents_see_each_other,
]
