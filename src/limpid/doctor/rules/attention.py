"""Attention: its scale, the size of its scores, and queries that see nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, at_break, before_first_step, on_step
from limpid.doctor.weights import fresh

if TYPE_CHECKING:
    from limpid.doctor.attention_probe import AttentionScores
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.replay.nan_replay import BrokenStep
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "attention"

LARGEST_HALF = Threshold(65504, "the largest float16: (2 - 2^-10) 2^15")

ATTENTION_ROW_SEES_NOTHING = Rule(
    "attention-row-sees-nothing",
    FAMILY,
    detects="A query with no key to attend to: its softmax is 0/0.",
    equation=r"\sum_j \mathbb 1[\text{key } j \text{ visible to query } i] = 0",
    source="pytorch#41508, #103749; definition of softmax",
    threshold="exact: a count of rows; a fault where the output is not finite, else a notice",
    cost="one pass op by op, before the first step or when it breaks",
    needs=(Probe.BATCH, Probe.FORWARD, Probe.ATTENTION, Probe.REPLAY),
    cause="the causal mask and the padding mask together hide every key",
    fix="let padded queries see themselves, pad on the right, or use a softmax that gives 0 for an empty row",
    refuted_by="a visible key in each of these rows",
    explains=("not-finite", "loss-diverges", "loss-spike"),
)

SCORES_OVERFLOW_HALF = Rule(
    "scores-overflow-half",
    FAMILY,
    detects="Attention scores beyond what float16 can hold.",
    equation=r"s \max_i \lVert q_i \rVert \max_j \lVert k_j \rVert > 65504",
    source="Zeng et al. 2022 (GLM-130B), section 3.3, arXiv:2210.02414; Wortsman et al. 2023, arXiv:2309.14322",
    threshold="a fault beyond {limit:g}, a warning beyond {share:.0%} of it, or above {least:g} when growth of "
    "{growth:g} times over the last four looks reaches it within {steps:g} steps; at a break a product of queries and "
    "keys whose float64 value is beyond its format",
    thresholds={
        "limit": LARGEST_HALF,
        "share": Threshold(0.5, "one doubling is left"),
        "least": Threshold(100, "fresh scores are near 1"),
        "growth": Threshold(3, "scores of healthy runs grow by less in forty steps"),
        "steps": Threshold(200, "time to stop and change something"),
    },
    cost="norms of queries and keys on sampled steps; one pass op by op when it breaks",
    needs=(Probe.ATTENTION, Probe.GRADIENT_NORM, Probe.REPLAY),
    cause="query and key norms grow",
    fix="scale queries before the product, bfloat16, QK-norm, or a lower rate",
    refuted_by="scores that stay below 65504",
    explains=("not-finite", "overflow-in-half", "loss-diverges", "gradient-explodes", "loss-spike"),
)

SCORES_NOT_SCALED = Rule(
    "scores-not-scaled",
    FAMILY,
    detects="Attention scores whose factor is not 1/√d_head.",
    equation=r"r = \mathrm{Var}(q \cdot k\, s) / (\mathrm{Var}\, q\, \mathrm{Var}\, k) = d_h s^2 = 1",
    source="Vaswani et al. 2017, eq. 1 and footnote 4, arXiv:1706.03762",
    threshold="d_h s² below {low:g} or above {high:g}, s measured as scores over products; a notice where queries and "
    "keys are normed, the factor is declared in the configuration, or lies in the weights (Var q / Var k makes up for "
    "more than half of its logarithm, within a factor of {folded:g}), and for trained weights, which have learned to "
    "live with theirs",
    thresholds={
        "folded": Threshold(2, "fresh queries of few rows scatter; a factor that is missing is off by d_h"),
        "low": Threshold(0.8, "exact but for soft caps, which take a few per cent off large scores"),
        "high": Threshold(1.25, "the same, the other way round"),
    },
    cost="one forward pass, seen op by op, before the first step",
    needs=(Probe.PARAMETERS, Probe.FORWARD, Probe.ATTENTION),
    fix="multiply q·k by 1/√d_head, once",
    meant="µP (1/d_head), no scale as in T5, a temperature of one's own, or an ablation",
    explains=("attention-scores-large",),
)

ATTENTION_SCORES_LARGE = Rule(
    "attention-scores-large",
    FAMILY,
    detects="Attention logits so large that softmax becomes one-hot.",
    equation=r"\max |s\, q \cdot k| > 10^3",
    source="Wortsman et al. 2023, section 3.1.1, arXiv:2309.14322; Zhai et al. 2023, arXiv:2303.06296",
    threshold="a warning above {warning:g}, a fault above {fault:g}; a bound by norms counts from {fault:g} on",
    thresholds={
        "warning": Threshold(1e3, "harm begins: Wortsman et al., figure 3"),
        "fault": Threshold(1e4, "all runs known beyond it diverged"),
    },
    cost="norms of queries and keys on sampled steps",
    needs=(Probe.ATTENTION,),
    cause="query and key norms grow: a high rate, no QK-norm, no decay",
    fix="QK-norm, a lower rate, decay on W_q and W_k",
    meant="attention that is to pick one key (hard attention, pointers, Hopfield nets)",
    refuted_by="a largest logit below 1000",
    explains=("loss-plateau", "loss-diverges", "gradient-explodes"),
)


@before_first_step(ATTENTION_ROW_SEES_NOTHING)
def blind(exam: Exam) -> Iterator[Finding]:
    call = exam.usual_call
    seen = [] if call is None or call.ids is None else [scores for scores in exam.attention.of_batch if scores.blind]
    if not seen:
        return
    rows = ", ".join(str(row) for row in seen[0].blind_rows)
    broken = exam.attention.batch_is_finite is False
    yield ATTENTION_ROW_SEES_NOTHING.finding(
        severity="fault" if broken else "notice",
        where=f"batch rows {rows}",
        says=f"{seen[0].blind} query rows of batch rows {rows} have no visible key: their softmax over all -inf is 0/0"
        + ("." if broken else "; here the kernel answers 0, others answer NaN."),
        cause=f"{ATTENTION_ROW_SEES_NOTHING.cause} (left padding)",
        evidence={"rows": seen[0].blind, "batch_rows": list(seen[0].blind_rows), "attentions": len(seen)},
    )


@at_break(ATTENTION_ROW_SEES_NOTHING)
def blind_at_break(broken: BrokenStep) -> Iterator[Finding]:
    origin = broken.origin
    if origin is not None and origin.empty_rows:
        yield ATTENTION_ROW_SEES_NOTHING.finding(
            severity="fault",
            step=broken.step,
            where=origin.module,
            says=f"{broken.what}: {origin.empty_rows} rows of a softmax in {origin.module} are all -inf (no visible "
            "key), so that it is 0/0.",
            evidence=broken.evidence | {"empty_rows": origin.empty_rows},
        )


@before_first_step(SCORES_NOT_SCALED)
def not_scaled(exam: Exam) -> Iterator[Finding]:
    rule = SCORES_NOT_SCALED
    seen = [scores for scores in exam.attention.scores if scores.query.shape[-1] > 1]
    off = [(i, scores) for i, scores in enumerate(seen) if scores.ratio < rule["low"] or scores.ratio > rule["high"]]
    if not off:
        return
    index, worst = max(off, key=lambda entry: abs(math.log(max(entry[1].ratio, 1e-30))))
    d, blocks = worst.query.shape[-1], exam.info.blocks
    why, trained = _which_factor(exam, worst), not fresh(exam.info)
    chosen = trained or _chosen(exam, worst)
    meant = "they were trained with it, it seems" if trained else "queries and keys are normed or made for it, it seems"
    yield rule.finding(
        severity="notice" if chosen else "fault",
        where=blocks[min(index, len(blocks) - 1)][0] if blocks else "attention",
        says=f"Var(scores)/(Var q · Var k) = {worst.ratio:.3g} instead of 1 in {len(off)} of {len(seen)} attentions "
        f"(d_head = {d}, factor {worst.factor:.4g}, expected {1 / math.sqrt(d):.4g}): {why}.",
        cause=f"{why}; {meant}" if chosen else why,
        fix="nothing, if these weights were trained with that factor" if trained else "nothing" if chosen else "",
        sure=0.5 if chosen else 0.95,
        refuted_by=f"a factor of {1 / math.sqrt(d):.4g}",
        evidence={
            "ratio": worst.ratio,
            "factor": worst.factor,
            "d_head": d,
            "attentions": len(off),
            "largest": exam.attention.scores[0].largest,
        },
    )


def _which_factor(exam: Exam, scores: AttentionScores) -> str:
    d = scores.query.shape[-1]
    width = exam.info.embedding[1].shape[-1] if exam.info.embedding is not None else 0
    known = {1.0: "the factor 1/√d_head is missing", 1 / d: "the factor is 1/d_head, not 1/√d_head"}
    if width:
        known[1 / math.sqrt(width)] = "the factor is 1/√d_model, not 1/√d_head"
    near = (text for factor, text in known.items() if abs(scores.factor / factor - 1) < 0.02)
    return next(near, "the factor is not 1/√d_head")


def _chosen(exam: Exam, scores: AttentionScores) -> bool:
    """Whether it is meant: queries are normed, the configuration declares it, or fresh weights make up for it."""
    names = ("query_pre_attn_scalar", "attention_multiplier", "attn_scale", "scale_attn_by_inverse_layer_idx")
    declared = exam.info.declared(*names)
    known = exam.info.declared("model_type") in ("t5", "gpt_neo")
    spread = [float(x.float().var()) for x in (scores.query, scores.key)]
    folded = max(scores.ratio * spread[0], 1e-30) / max(spread[1], 1e-30)  # T5 draws its queries smaller by √d_head
    made = abs(math.log(folded)) < min(
        math.log(SCORES_NOT_SCALED["folded"]), abs(math.log(max(scores.ratio, 1e-30))) / 2
    )
    return scores.normed or declared not in (None, False) or known or made


@on_step(ATTENTION_SCORES_LARGE, asks="attentions")
def large(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule = ATTENTION_SCORES_LARGE
    if not record.attentions:
        return
    index, scores = _largest(record)
    if not scores.largest > rule["warning"] or not (scores.exact or scores.largest > rule["fault"]):
        return
    start = history.scores[0][1]
    grown = scores.largest > rule["fault"] and scores.exact and start < rule["warning"]
    yield rule.finding(
        severity="fault" if scores.largest > rule["fault"] and scores.exact else "warning",
        meant=None if grown else "",
        step=record.number,
        where=watched.info.attention_name(index),
        says=f"attention logits reach {scores.largest:.3g} ({start:.3g} at the start): softmax is one-hot; above "
        f"{rule['warning']:.0e} harm begins, every run known above {rule['fault']:.0e} diverged.",
        sure=0.85,
        evidence={"largest": scores.largest, "start": start},
    )


@on_step(SCORES_OVERFLOW_HALF, asks="attentions")
def near_the_end_of_half(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """The largest attention logit, and how long until the format ends at its rate of growth."""
    rule = SCORES_OVERFLOW_HALF
    if not record.attentions:
        return
    index, scores = _largest(record)
    if not scores.half:
        return
    raw = scores.largest / max(abs(scores.factor), 1e-12) if scores.exact else scores.largest
    largest, left = max(scores.largest, raw), None
    if not largest > rule["limit"] * rule["share"]:
        if len(history.scores) < 4 or not largest > rule["least"]:
            return
        (s0, x0, _), (s1, x1, _) = history.scores[-4], history.scores[-1]
        if not x1 > rule["growth"] * x0 > 0 or s1 <= s0:
            return
        left = math.log(rule["limit"] / largest) / (math.log(x1 / x0) / (s1 - s0))
        if left >= rule["steps"]:
            return
    start, where = history.scores[0][1], watched.info.attention_name(index)
    grows = "a temperature that is learned and comes to rest, or a cap, before the format ends"
    when = "" if left is None else f", reached in about {left:.0f} steps at this rate"
    yield rule.finding(
        severity="warning" if largest < rule["limit"] else "fault",
        step=record.number,
        where=where,
        says=f"{where} scores reach {largest:.3g} in float16, whose maximum is {rule['limit']:.0f}{when} ({start:.3g} "
        "at the start).",
        meant=grows if left is not None else None,
        sure=0.9,
        evidence={"largest": largest, "start": start, "steps_left": left},
    )


def _largest(record: StepRecord) -> tuple[int, AttentionScores]:
    """The attention with the largest score, and which it is."""
    index = max(range(len(record.attentions)), key=lambda i: record.attentions[i].largest)
    return index, record.attentions[index]


@at_break(SCORES_OVERFLOW_HALF)
def scores_at_break(broken: BrokenStep) -> Iterator[Finding]:
    if broken.origin is not None and broken.overflowed and broken.origin.multiplies_queries_and_keys:
        yield broken.overflow(SCORES_OVERFLOW_HALF, "attention scores", "query and key norms grew beyond the format")
