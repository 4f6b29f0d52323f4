"""The rows that are served: repeated, doubled, or begun twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from limpid.doctor.finding import Finding, Severity
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step
from limpid.doctor.runs import trailing_run

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.row_history import RowHistory
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "rows"

ROUNDINGS = 64
"""Of the logits' format, that a sum over a batch of losses row by row may lie off the formula of one."""

BATCH_REPEATS = Rule(
    "batch-repeats",
    FAMILY,
    detects="The same rows again and again before the data has been gone through once.",
    equation=r"\text{distinct rows} / \text{rows served} < \tfrac12;\; \text{chance}\; n^2 / 2^{65}",
    source="birthday bound; pytorch#5059",
    threshold="the same batch in {steps:g} steps in a row (a notice where the loop keeps one tensor, where its rows "
    "come in another order, or where they are {all:g} rows or more and no multiple of 8); the same batches in the "
    "same order {steps:g} times; both a notice where a loader of this process has as many rows; under {share:.0%} "
    "distinct rows that come back in {epoch:.0%} of an epoch of those rows of their length that come back at all (a "
    "notice where each batch is served equally often on end, and then no more); or "
    "{served:g} batches of rows that fill {batches:g} (a notice where they fill {none:g}, or less than "
    "one, and of measured numbers "
    "where "
    "more than {period:g} come again in order); never where the data is known to have no more rows, a quarter of all "
    "rows that there can be has been served, or rows are answers that were drawn for several updates; a notice where "
    "they have rewards or advantages. Nobody means one batch {stuck:g} times on end beside a loader of "
    "ten times as many",
    thresholds={
        "steps": Threshold(3, "64-bit hashes of n rows repeat by chance with n²/2^65; twice may be a retry"),
        "share": Threshold(0.5, "the second epoch of a run serves each row twice"),
        "epoch": Threshold(0.25, "rows come back after an epoch, in the median; drawn at random after 0.7"),
        "stuck": Threshold(20, "nobody loads a batch anew so often to learn it by heart, beside a loader of all"),
        "served": Threshold(20, "five epochs over four batches"),
        "batches": Threshold(4, "a set that small is a test, or a mistake"),
        "none": Threshold(2, "nobody cuts a set into batches that fills less than two of them"),
        "period": Threshold(2, "two batches that take turns are no set"),
        "all": Threshold(32, "and no multiple of 8: not a size of batches that anybody chooses, but that of the data"),
    },
    cost="one hash per row, microseconds",
    meant="a batch or a small set learned by heart, several steps on each batch, rows of a short series",
    needs=(Probe.ROWS,),
    cause="the iterator is made anew at each step, or the seed is reset",
    fix="make the iterator once per epoch: for batch in loader",
    refuted_by="new row hashes at the next step",
    explains=("loss-below-floor", "loss-plateau", "ranks-same-data"),
)

ROWS_DUPLICATED = Rule(
    "rows-duplicated",
    FAMILY,
    detects="The same row several times inside one batch.",
    equation=r"\text{distinct rows of a batch} < \text{rows}",
    source="birthday bound",
    threshold="at most {share:.0%} of the rows of a batch that have labels are different, of {rows:g} or more; in the "
    "loop in {steps:g} steps and in {most:.0%} of all, a notice where all steps so far have fewer different rows than "
    "a batch, or where the model draws random numbers and the loss is no cross-entropy of each row by itself",
    thresholds={
        "share": Threshold(0.5, "what is less may be a text that is often quoted"),
        "rows": Threshold(4, "two of three rows may be equal by intent: pairs"),
        "steps": Threshold(3, "hashes of 64 bits do not collide, but one batch may be drawn from a small set"),
        "most": Threshold(
            0.5, "workers and samplers do so at every step; a last batch is filled up, short rows are few"
        ),
    },
    cost="one hash per row",
    meant="rows drawn with replacement, or copies that get other noise, masks or negatives",
    needs=(Probe.BATCH, Probe.ROWS, Probe.LOSS_GRADIENT),
    cause="workers that read the same rows, or sampling with replacement from very little data",
    fix="give each worker its own seed and its own share; take each row once per epoch",
    refuted_by="different rows",
)

DOUBLED_BOS = Rule(
    "doubled-bos",
    FAMILY,
    detects="Rows that begin with the same special token twice.",
    equation=r"x_0 = x_1 = \text{bos in every row}",
    source="vLLM PR#16976, open-r1 PR#462",
    threshold="exact: every row of at least {rows:g}",
    thresholds={"rows": Threshold(4, "two texts may begin with the same token twice")},
    cost="a comparison",
    meant="a mark of two equal tokens",
    needs=(Probe.BATCH,),
    cause="the template adds a start token, and so does the tokenizer",
    fix="tokenize templates with add_special_tokens=False",
    refuted_by="a row with another second token",
)


class Repeat(NamedTuple):
    """One way in which rows come back."""

    says: str
    sure: float
    number: float  # times or share
    distinct: int
    severity: Severity = "fault"


@on_step(BATCH_REPEATS)
def repeats(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rows = history.rows
    if not rows.hashes or record.is_drawn or watched.is_all_the_data(rows.distinct, len(rows.hashes)):
        return
    if rows.short is not None:
        return
    repeat = _same_batch(rows) or _too_soon(rows) or _cycle(rows) or _few(rows)
    if repeat is not None:
        unused = repeat.number >= BATCH_REPEATS["stuck"] and _beside_more(rows, repeat)
        rewarded = any(micro.is_rewarded for micro in record.micros)  # several updates on what a policy did
        yield BATCH_REPEATS.finding(
            severity="notice" if rewarded else repeat.severity,
            step=record.number,
            where="data",
            says=f"{repeat.says}.",
            meant=None if unused else "",
            sure=repeat.sure,
            evidence={"times_or_share": repeat.number, "distinct_rows": repeat.distinct},
        )


def _beside_more(rows: RowHistory, repeat: Repeat) -> bool:
    """Whether a loader of this process has ten times as many rows as the one batch that is served on end."""
    rows.is_a_data_set(repeat.distinct)
    return len(set(rows.batches)) == 1 and max(rows.loaders or {0}) >= 10 * repeat.distinct


def _same_batch(rows: RowHistory) -> Repeat | None:
    recent, steps = list(rows.batches), int(BATCH_REPEATS["steps"])
    if len(recent) < steps or len(set(recent[-steps:])) != 1:
        return None
    times = next((i for i, batch in enumerate(reversed(recent)) if batch != recent[-1]), len(recent))
    distinct = len(set(rows.hashes))
    kept = rows.same_tensors >= 2  # the loop holds one batch, as one does on purpose
    many = distinct >= BATCH_REPEATS["all"] or rows.measured
    odd = many and distinct % 8 != 0  # a size that nobody chooses is that of the data
    says = f"the last {times} steps all used the same {distinct} sequences"
    says += ", one tensor that the loop keeps: to learn a single batch by heart, it seems" if kept else ""
    shuffled = len(set(list(rows.orders)[-steps:])) > 1 and distinct == len(rows.hashes)
    whole = not kept and (odd or shuffled or rows.is_a_data_set(distinct))
    says += ": all the data at each step, it seems" if whole else ""
    return Repeat(says, 1.0, times, distinct, "notice" if kept or whole else "fault")


def _too_soon(rows: RowHistory) -> Repeat | None:
    if len(rows.gaps) < 64 or rows.known_before <= 8 * len(rows.hashes):
        return None
    distinct = rows.distinct
    share = distinct / rows.count
    if share >= BATCH_REPEATS["share"] or median(rows.epochs) >= BATCH_REPEATS["epoch"]:
        return None
    if (times := rows.echoes) is not None:
        echoed = f"each batch is learned from in {times} steps on end, and then no more"
        return Repeat(echoed, 0.5, times, distinct, "notice")
    gap = median(rows.gaps)
    says = f"only {distinct:,} of {rows.count:,} rows served are different, and they come back after {gap:,.0f} rows, "
    return Repeat(f"{says}long before an epoch", 0.9, share, distinct)


def _cycle(rows: RowHistory) -> Repeat | None:
    if (len(rows.gaps) >= 64 and rows.known_before > 8 * len(rows.hashes)) or (period := rows.period) is None:
        return None
    says = f"the same {period} batches come again in the same order, for the third time: {rows.count:,} rows served "
    # numbers that were measured are often few, and need no shuffling
    few = rows.measured and period > BATCH_REPEATS["period"]
    severity: Severity = "notice" if few or rows.is_a_data_set(rows.distinct) else "fault"
    return Repeat(f"{says}are {rows.distinct:,} different ones", 0.85, period, rows.distinct, severity)


def _few(rows: RowHistory) -> Repeat | None:
    batch, distinct = rows.batch, rows.distinct
    many = len(rows.gaps) >= 64 and rows.known_before > 8 * batch
    if many or rows.count < BATCH_REPEATS["served"] * batch or distinct > BATCH_REPEATS["batches"] * batch:
        return None
    says = f"{rows.count:,} rows served are {distinct:,} different ones, in {distinct / batch:.1f} batches that come "
    drawn = distinct < batch  # with replacement, as nobody cuts a set into batches
    severity: Severity = "warning" if distinct < BATCH_REPEATS["none"] * batch and not drawn else "notice"
    return Repeat(f"{says}again and again", 0.8, rows.count, distinct, severity)


@before_first_step(ROWS_DUPLICATED)
def duplicated(exam: Exam) -> Iterator[Finding]:
    from limpid.doctor.row_history import spelled

    if exam.micros and exam.micros[0].is_drawn:  # equal answers to a prompt
        return
    for ids in _first_rows(exam):
        distinct = len(ids.unique(dim=0))
        if spelled(ids.numpy()) < math.log(4 * distinct):  # there are hardly more
            continue
        if distinct <= ROWS_DUPLICATED["share"] * len(ids) and not exam.is_all_the_data(distinct, len(ids)):
            says = f"{len(ids)} rows of the batch are only {distinct} different ones."
            read = exam.loss_gradients
            compared = exam.info.dropout_rate > 0 and bool(read) and not _row_by_row(read)
            yield _duplicated(len(ids), distinct, says, compared=compared)


@on_step(ROWS_DUPLICATED)
def duplicated_in_steps(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, hashes = ROWS_DUPLICATED, _learned_from(record, history.rows.hashes)
    rows, distinct = len(hashes), len(set(hashes))
    if record.downhill:
        history.rows_compared = watched.info.dropout_rate > 0 and not _row_by_row(record.downhill)
    if not rows:
        return
    few = rows >= rule["rows"] and distinct <= rule["share"] * rows
    steps, times = history.times(f"{rule.slug} of"), history.counts[rule.slug] + few
    history.counts[rule.slug] = times
    if (
        not few
        or record.is_drawn
        or history.rows.short is not None  # there are no more
        or watched.is_all_the_data(distinct, rows)
        or times < rule["steps"]
        or times < rule["most"] * steps
    ):
        return
    says = f"{rows} rows of a step are only {distinct} different ones, in {times} of {steps} steps."
    known = history.rows.distinct
    fewer = known < rows and len(set(history.rows.batches)) >= rule["steps"]
    says += f" All steps so far have {known}, fewer than a batch: they are drawn from these." if fewer else ""
    yield _duplicated(rows, distinct, says, record.number, fewer, history.rows_compared)


def _learned_from(record: StepRecord, hashes: list[int]) -> list[int]:
    """Those of rows that have a label: copies without any fill a batch up."""
    sources = [(one.ids, one.labels) for one in record.micros if one.ids is not None]
    sources = sources or [(one.ids, one.labels) for one in record.calls if one.ids is not None]
    taught: list[bool] = []
    for ids, given in sources:
        labels = None if given is None or given.shape != ids.shape else record.host(given)
        taught += [True] * len(ids) if labels is None else (labels >= 0).any(1).tolist()
    return [h for h, has in zip(hashes, taught, strict=True) if has] if len(taught) == len(hashes) else hashes


def _row_by_row(gradients: Sequence[LossGradient]) -> bool:
    """Whether the loss is a sum over rows, each by itself: a cross-entropy of its own logits, to rounding."""
    import torch

    return bool(gradients) and all(
        min(one.misfit, one.misfit_log_z) < ROUNDINGS * torch.finfo(one.dtype).eps or one.smoothing > 0
        for one in gradients
    )


def _duplicated(
    rows: int, distinct: int, says: str, step: int | None = None, drawn: bool = False, compared: bool = False
) -> Finding:
    cause = fix = ""
    if drawn:
        cause, fix = "sampling with replacement from a set smaller than a batch", "nothing, if there is no more data"
    elif compared:
        cause = "each row twice with other dropout, whose outputs the loss compares, it seems"
        fix = "nothing, if that is meant"
    return ROWS_DUPLICATED.finding(
        severity="notice" if drawn or compared else "warning",
        step=step,
        where="batch",
        says=says,
        cause=cause,
        fix=fix,
        sure=0.5 if drawn or compared else 0.8 if step is None else 0.9,
        evidence={"rows": rows, "distinct": distinct},
    )


def _first_rows(exam: Exam) -> Iterator[Tensor]:
    """Token ids of the first micro-batch, where there are enough to judge rows by."""
    for micro in exam.micros[:1]:
        if micro.ids is not None and len(micro.ids) >= ROWS_DUPLICATED["rows"] and micro.ids.shape[1] >= 8:
            yield micro.ids.cpu()


@before_first_step(DOUBLED_BOS)
def begun_twice(exam: Exam) -> Iterator[Finding]:
    for ids in _first_rows(exam):
        start = exam.info.declared("bos_token_id")
        same = bool((ids[:, 0] == ids[:, 1]).all()) and len(ids[:, 0].unique()) == 1
        text = bool((ids != ids[:, :1]).any())
        enough = len(ids) >= DOUBLED_BOS["rows"] and same and text
        if enough and start in (None, int(ids[0, 0])) and not any(trailing_run(row.flip(0)) > 2 for row in ids):
            yield DOUBLED_BOS.finding(
                severity="warning",
                where="position 0 and 1 of every row",
                says=f"every row begins with token {int(ids[0, 0])} twice.",
                meant="" if start is None else None,
                sure=0.9 if start is not None else 0.6,
                evidence={"token": int(ids[0, 0]), "rows": len(ids)},
            )
