"""Attention before the first step: the size of its scores, and rotations that make them relative."""

from __future__ import annotations

import math
from collections.abc import Iterator

from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding


def scores_not_scaled(exam: Exam) -> Iterator[Finding]:
    heads = [h for h in exam.heads if h.query.shape[-1] > 1]
    if not heads:
        return
    off = [(i, h) for i, h in enumerate(heads) if h.ratio > 1.25 or h.ratio < 0.8]
    if not off:
        return
    index, worst = max(off, key=lambda entry: abs(math.log(max(entry[1].ratio, 1e-30))))
    d = worst.query.shape[-1]
    width = exam.info.embedding[1].shape[-1] if exam.info.embedding is not None else 0
    known = {1.0: "the factor 1/√d_head is missing", 1 / d: "the factor is 1/d_head, not 1/√d_head"}
    if width:
        known[1 / math.sqrt(width)] = "the factor is 1/√d_model, not 1/√d_head"
    why = next(
        (text for factor, text in known.items() if abs(worst.factor / factor - 1) < 0.02), "the factor is not 1/√d_head"
    )
    declared = exam.info.declared(
        "query_pre_attn_scalar", "attention_multiplier", "attn_scale", "scale_attn_by_inverse_layer_idx"
    )
    chosen = worst.normed or (declared not in (None, False)) or exam.info.declared("model_type") in ("t5", "gpt_neo")
    trained = not exam.info.fresh()
    kappa = exam.heads[0].largest
    yield Finding(
        rule="scores-not-scaled",
        severity="notice" if chosen else "warning" if trained else "fault",
        where=exam.info.blocks[min(index, len(exam.info.blocks) - 1)][0] if exam.info.blocks else "attention",
        says=f"Var(scores)/(Var q · Var k) = {worst.ratio:.3g} instead of 1 in {len(off)} of {len(heads)} attentions "
        f"(d_head = {d}, factor {worst.factor:.4g}, expected {1 / math.sqrt(d):.4g}): {why}.",
        cause=why + (", by choice: queries and keys are normed or the configuration says so" if chosen else ""),
        fix="nothing" if chosen else "multiply q·k by 1/√d_head, once",
        sure=0.5 if chosen else 0.95,
        refuted_by=f"a factor of {1 / math.sqrt(d):.4g}",
        evidence={"ratio": worst.ratio, "factor": worst.factor, "d_head": d, "attentions": len(off), "largest": kappa},
    )


def rotary_not_relative(exam: Exam) -> Iterator[Finding]:
    share, heads = exam.off_diagonal, exam.constant_heads
    if share is None or heads is None:
        return
    q, k = heads.query[0].double(), heads.key[0].double()
    turned = {
        name: bool((x - x[:, :1]).abs().max() > 1e-3 * x.abs().max()) for name, x in (("queries", q), ("keys", k))
    }
    rotary = exam.info.declared("rope_theta", "rotary_base", "rope_parameters", "rope_scaling", "rotary_emb_base")
    ours = exam.info.declared("positions") == "rotary"
    if not any(turned.values()):
        if rotary is not None or ours or exam.turns:
            yield _rotary(exam, "neither queries nor keys are rotated by their positions", 0.0)
    elif share > 0.1:
        one = [name for name, yes in turned.items() if not yes]
        text = f"{one[0]} are not rotated" if one else "queries and keys are rotated in different layouts or angles"
        yield _rotary(exam, text, share)


def _rotary(exam: Exam, what: str, share: float) -> Finding:
    return Finding(
        rule="rotary-not-relative",
        severity="fault",
        where=exam.info.first_mixing,
        says=f"for a row of one repeated token scores should depend on i - j alone; {share:.0%} of their variance does "
        f"not: {what}."
        if share
        else f"for a row of one repeated token no score depends on position: {what}.",
        cause=what,
        fix="rotate queries and keys by the same function, with the same layout and positions",
        sure=0.98,
        refuted_by="a share of 0",
        evidence={"off_diagonal_share": share},
    )


EXAM = [scores_not_scaled, rotary_not_relative]
