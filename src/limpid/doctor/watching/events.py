"""The order of things: exact tests on what was called, how often, and what was left over."""

from __future__ import annotations

import math
from collections.abc import Iterator

from limpid.doctor.finding import Finding
from limpid.doctor.ranks import processes
from limpid.doctor.step_record import History, StepRecord
from limpid.doctor.watched import Watched


def leftovers(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if not record.stale or not math.isfinite(record.stale):
        return
    first = history.norms.all[0] if history.norms.all else math.nan
    yield Finding(
        rule="gradients-not-cleared",
        severity="fault",
        step=record.number,
        where="optimizer",
        says=f"gradients of earlier steps are still there when backward begins: step {record.number} uses the sum of "
        f"{record.number} batches (norm {record.norm or math.nan:.3g}; the first batch alone {first:.3g}).",
        cause="zero_grad is missing, or clears other parameters than those that train",
        fix="optimizer.zero_grad(set_to_none=True) once per step, before its first backward",
        refuted_by="gradients that are None or 0 before backward",
        evidence={"largest_left": record.stale, "first_norm": first},
    )


def clip_and_scale(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    events = record.events
    if "clip" not in events:
        if history.facts.get("clips"):
            history.facts["clips"] -= 1
        return
    clip = events.index("clip")
    scaled = "scaler.scale" in events and watched.scaling
    if scaled and record.scale > 1 and "scaler.unscale_" not in events[:clip]:
        norm = record.norm or math.nan
        limit = record.clipped_to or math.nan
        yield Finding(
            rule="clipped-before-unscaling",
            severity="fault",
            step=record.number,
            where="gradients",
            says=f"clipping to {limit:g} is applied to gradients multiplied by {record.scale:,.0f} (norm {norm:.3g}, "
            f"really {norm / record.scale:.3g}): the optimizer sees norm {min(norm, limit) / record.scale:.2g} "
            f"instead of {limit:g}.",
            cause="clip_grad_norm_ before scaler.unscale_",
            fix="scaler.unscale_(optimizer) before clipping",
            refuted_by="unscale before clip",
            evidence={"norm": norm, "scale": record.scale, "max_norm": limit},
        )
    if "update" not in events or "backward" not in events:
        return
    late = clip > events.index("update")
    if late or clip < events.index("backward"):
        history.clip_misplaced += 1
        if history.clip_misplaced == 2:
            yield Finding(
                rule="clipped-after-update",
                severity="fault",
                step=record.number,
                where="gradients",
                says="gradients are clipped "
                + ("after the update has used them." if late else "before backward has made them."),
                cause="the order of the loop",
                fix="backward, clip, step",
                refuted_by="a clip between backward and step",
                evidence={"order": events[:12]},
            )


def clip_misses(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Gradients that no clip had: all of them, or most and more than the limit."""
    if record.unclipped is None or not record.updated:
        return
    left, whole = record.unclipped
    limit, clipped = record.clipped_to or math.inf, math.sqrt(max(whole**2 - left**2, 0))
    nothing = left > 0 and all(float(norm) == 0 for _, norm in record.clips)
    most = left > 2 * limit and not nothing and _of_this_model(watched, record)
    history.facts["unclipped"] = history.facts.get("unclipped", 0) + 1 if nothing or most else 0
    if history.facts["unclipped"] == 2:
        yield Finding(
            rule="clipping-misses-parameters",
            severity="fault" if nothing else "warning",
            step=record.number,
            where="gradients",
            says="clipping is given no gradients at all"
            if nothing
            else f"clipping to {limit:g} is given gradients of norm {clipped:.3g}; those of "
            f"norm {left:.3g} that the optimizer uses beside them are not clipped" + ".",
            cause="a generator of parameters that the optimizer has used up, or parameters of another model"
            if nothing
            else "only a part of the model is clipped",
            fix="clip_grad_norm_(model.parameters(), …), a new call of parameters() each time",
            sure=0.95 if nothing else 0.7,
            refuted_by=f"a norm of at most {limit:g} at the update",
            evidence={"unclipped": left, "whole": whole, "limit": limit},
        )


def _of_this_model(watched: Watched, record: StepRecord) -> bool:
    """Whether what is clipped are parameters of the model that is watched."""
    return any(ids & set(watched.info.names) for ids, _ in record.clips)


def scaled_at_all(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A scaler that divides gradients of a loss it has not multiplied."""
    events = record.events
    divided = "scaler.step" in events or "scaler.unscale_" in events
    missing = watched.scaling and divided and "backward" in events and "scaler.scale" not in events
    history.facts["unscaled"] = history.facts.get("unscaled", 0) + 1 if missing and watched.scale > 1 else 0
    if history.facts["unscaled"] == 2:
        yield unscaled(watched.scale, record)


def unscaled(scale: float, record: StepRecord) -> Finding:
    return Finding(
        rule="loss-not-scaled",
        severity="fault",
        step=record.number,
        where="scaler",
        says=f"backward starts from the loss itself, but its gradients are divided by {scale:,.0f} before the update.",
        cause="loss.backward() where scaler.scale(loss).backward() is meant",
        fix="scaler.scale(loss).backward()",
        refuted_by=f"weights of the step's tokens that add up to {scale:,.0f} in the gradient",
        evidence={"scale": scale, "order": record.events[:12]},
    )


def nothing_to_step_with(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    history.empty_steps = history.empty_steps + 1 if record.no_gradients and record.updated else 0
    if history.empty_steps == 2:
        yield Finding(
            rule="step-without-gradients",
            severity="fault",
            step=record.number,
            where="optimizer",
            says="the optimizer steps, but none of its parameters has a gradient other than 0: nothing is learned.",
            cause="gradients are cleared between backward and step, or the optimizer holds other tensors than the "
            "model",
            fix="zero_grad before backward; build the optimizer from the final model",
            refuted_by="one gradient at the step",
            evidence={"order": record.events[:12]},
        )


def judged_with_dropout(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Forward passes without gradient in training mode: an evaluation with dropout on."""
    if history.facts.get("random_evaluations", 0) >= 2:
        yield Finding(
            rule="dropout-in-evaluation",
            severity="warning",
            step=record.number,
            where="model",
            says=f"{history.facts['random_evaluations']} forward passes without gradients ran in training mode, with "
            f"dropout {watched.info.dropout_rate:g} active: what they measured is random, and too high.",
            cause="an evaluation without model.eval()",
            fix="model.eval() before evaluating, model.train() after",
            sure=0.9,
            refuted_by="model.training False in these passes",
            evidence={"passes": history.facts["random_evaluations"]},
        )


def evaluation_mode(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if not record.in_eval:
        history.facts["eval_since"] = None
        return
    since = history.facts.get("eval_since") or record.number
    history.facts["eval_since"] = since
    rate, norms = watched.info.dropout_rate, watched.info.batch_norms
    matters = rate > 0 or norms
    what = (
        f"dropout {rate:g} is inactive"
        if rate > 0
        else "batch norm uses stored statistics"
        if norms
        else "which changes nothing here"
    )
    whole = record.in_eval == ["model"]
    if whole or len(record.in_eval) > 0:
        yield Finding(
            rule="trained-in-eval-mode",
            severity="fault" if matters and whole else "warning" if matters else "notice",
            step=record.number,
            where=record.in_eval[0],
            says=f"since step {since} {'the model' if whole else f'{len(record.in_eval)} modules'} "
            f"train{'s' if whole else ''} in evaluation mode: {what}.",
            cause="model.eval() for an evaluation, and no model.train() after it",
            fix="model.train() after evaluating",
            refuted_by="model.training True during backward",
            evidence={"dropout": rate, "since": since},
        )


def skipped_steps(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if not watched.scaling:
        return
    history.skips.append(record.skipped)
    history.skips_in_a_row = history.skips_in_a_row + 1 if record.skipped else 0
    late = list(history.skips)[100:] if record.number <= 400 else list(history.skips)
    share = sum(late) / len(late) if len(late) >= 100 else 0.0
    if history.skips_in_a_row > 10 or share > 0.05:
        yield Finding(
            rule="loss-scale-collapsed",
            severity="fault",
            step=record.number,
            where="scaler",
            says=f"{history.skips_in_a_row} steps in a row skipped, {share:.0%} of the last {len(late)} after step "
            f"100; loss scale {record.scale:g}: gradients are not finite at any scale.",
            cause="an activation overflows float16, whatever the loss is scaled by, or a loss is NaN",
            fix="bfloat16, or find the overflow: the first bad operation is named when the loss itself breaks",
            sure=0.95,
            refuted_by="an update that is not skipped",
            evidence={"scale": record.scale, "skipped_share": share},
        )


def other_forward(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """The wrapper that averages gradients among processes was never called."""
    if processes() == 1 or watched.info.outer is watched.info.model or watched.info.compiled:
        return
    if record.inner_called and not record.outer_called and record.number >= 1:
        yield Finding(
            rule="gradients-not-averaged",
            severity="fault",
            step=record.number,
            where=type(watched.info.outer).__name__,
            says=f"the module inside {type(watched.info.outer).__name__} is called, not the wrapper: gradients are "
            "never averaged, and every rank trains alone.",
            cause="ddp.module(x) instead of ddp(x)",
            fix="call the wrapper",
            refuted_by="one call of the wrapper",
            evidence={"calls": len(record.calls)},
        )


WATCH = [
    leftovers,
    judged_with_dropout,
    clip_and_scale,
    clip_misses,
    scaled_at_all,
    nothing_to_step_with,
    evaluation_mode,
    skipped_steps,
    other_forward,
]
