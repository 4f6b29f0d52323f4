"""Clipping: at the right place, of the right gradients, and not all the time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, in_log, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.logs.table import Curves
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "clipping"

CLIPPED_BEFORE_UNSCALING = Rule(
    "clipped-before-unscaling",
    FAMILY,
    detects="Gradients are clipped while still multiplied by the loss scale.",
    equation=r"\lVert g \rVert \le c / s \;\text{at the update, instead of}\; c",
    source="definition; the order of scale, clip and unscale",
    threshold="exact: clip after scale without unscale in between; a limit of {share:g} times the scale or more is "
    "multiplied by it on purpose",
    thresholds={"share": Threshold(0.01, "limits of gradients are 0.1 to 10, scales 2^10 and more")},
    cost="none: event counters",
    needs=(Probe.EVENTS, Probe.GRADIENT_NORM),
    cause="clip_grad_norm_ before scaler.unscale_",
    fix="scaler.unscale_(optimizer) before clipping",
    refuted_by="unscale before clip",
    explains=("clipped-every-step", "epsilon-dominates", "update-not-as-predicted", "loss-plateau"),
)

CLIPPED_AFTER_UPDATE = Rule(
    "clipped-after-update",
    FAMILY,
    detects="Gradients are clipped after the update has used them, or before they are computed.",
    equation=r"\text{order: backward, clip, step}",
    source="definition; event order",
    threshold="exact: in {steps:g} steps the first clip comes after the update and before the next backward pass, or a "
    "backward pass between it and the update",
    thresholds={"steps": Threshold(2, "the first step of a loop may be set-up")},
    cost="none: event counters",
    needs=(Probe.EVENTS,),
    cause="the order of the loop",
    fix="backward, clip, step",
    refuted_by="a clip between backward and step",
)

CLIPPING_MISSES = Rule(
    "clipping-misses-parameters",
    FAMILY,
    detects="Gradients that clipping never sees: it is given other parameters, or none.",
    equation=r"\lVert g \rVert > c \;\text{at the update, after a clip to } c",
    source="definition; identity of tensors",
    threshold="a fault where every clip has norm 0 while the optimizer has gradients, in {steps:g} sampled steps in a "
    "row; a warning where a clip of this model leaves out gradients of {times:g} times the limit",
    thresholds={
        "steps": Threshold(2, "one batch may use other parameters"),
        "times": Threshold(2, "what is less was hardly worth clipping"),
    },
    cost="a norm on sampled steps",
    needs=(Probe.EVENTS, Probe.CLIPPING),
    cause="only a part of the model is clipped",
    fix="clip_grad_norm_(model.parameters(), …), a new call of parameters() each time",
    meant="one part alone is clipped, such as a recurrent core, a head or a policy",
)

CLIPPED_EVERY_STEP = Rule(
    "clipped-every-step",
    FAMILY,
    detects="Clipping acts on every step: the gradient's length never counts.",
    equation=r"c / \lVert g_t \rVert < 1 \;\text{for all } t",
    source="Pascanu et al. 2012, section 3.2, arXiv:1211.5063",
    threshold="a notice after {steps:g} steps in a row beyond step {begun:g} that are clipped by more than {times:g}; "
    "a warning where it is by more than {slowed:g} and the update is proportional to the gradient, as in SGD",
    thresholds={
        "steps": Threshold(50, "one chance in 2^50, were each step clipped or not by a coin"),
        "begun": Threshold(20, "first gradients are large"),
        "times": Threshold(10, "clipping by less is what many runs do"),
        "slowed": Threshold(100, "1 % of the rate is left: what Adam divides out again, SGD does not"),
    },
    cost="none: the clip computes the norm",
    needs=(Probe.EVENTS, Probe.GRADIENT_NORM, Probe.LOG),
    cause="a loss that is a sum, a limit for another batch size, or an unstable model",
    fix="a mean as loss, or a limit near the usual norm",
    meant="normalised gradient descent: every step has the length of the rate",
    refuted_by="steps that are not clipped",
    explains=("weights-never-change", "learning-rate-too-low", "loss-plateau"),
)


@on_step(CLIPPED_BEFORE_UNSCALING)
def scaled_when_clipped(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    events = record.events
    if "clip" not in events or not ("scaler.scale" in events and watched.scaling) or record.scale <= 1:
        return
    if "scaler.unscale_" in events[: events.index("clip")]:
        return
    if record.values_clipped_to is not None:
        limit = record.values_clipped_to
        yield CLIPPED_BEFORE_UNSCALING.finding(
            severity="fault",
            step=record.number,
            where="gradients",
            says=f"each entry is clipped to {limit:g} while gradients are multiplied by {record.scale:,.0f}: the "
            f"optimizer sees none above {limit / record.scale:.2g} instead of {limit:g}.",
            meant=_scaled_too(limit, record.scale),
            evidence={"scale": record.scale, "max_value": limit},
        )
        return
    norm, limit = record.norm or math.nan, record.clipped_to or math.nan
    yield CLIPPED_BEFORE_UNSCALING.finding(
        severity="fault",
        step=record.number,
        where="gradients",
        says=f"clipping to {limit:g} is applied to gradients multiplied by {record.scale:,.0f} (norm {norm:.3g}, "
        f"really {norm / record.scale:.3g}): the optimizer sees norm {min(norm, limit) / record.scale:.2g} "
        f"instead of {limit:g}.",
        meant=_scaled_too(limit, record.scale),
        evidence={"norm": norm, "scale": record.scale, "max_norm": limit},
    )


def _scaled_too(limit: float, scale: float) -> str | None:
    """Who clips scaled gradients on purpose."""
    return (
        "a limit that is multiplied by the loss scale" if limit >= CLIPPED_BEFORE_UNSCALING["share"] * scale else None
    )


@on_step(CLIPPED_AFTER_UPDATE)
def order(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    events = record.events
    if not {"clip", "update", "backward"} <= set(events) or record.clipped_to == math.inf:  # a look at the norm
        return
    clip, update = events.index("clip"), events.index("update")
    late = clip > update and "backward" not in events[update:clip]
    early = clip < update and "backward" not in events[:clip] and "backward" in events[clip:update]
    if not late and not early:  # a loop may begin with the update of the step before
        return
    if history.times(CLIPPED_AFTER_UPDATE.slug) == CLIPPED_AFTER_UPDATE["steps"]:
        when = "after the update has used them." if late else "before backward has made them."
        yield CLIPPED_AFTER_UPDATE.finding(
            severity="fault",
            step=record.number,
            where="gradients",
            says=f"gradients are clipped {when}",
            evidence={"order": events[:12]},
        )


@on_step(CLIPPING_MISSES, asks="unclipped")
def left_out(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Gradients that no clip had: all of them, or most and more than the limit."""
    rule = CLIPPING_MISSES
    if record.unclipped is None or not record.updated:
        return
    left, whole = record.unclipped
    limit, clipped = record.clipped_to or math.inf, math.sqrt(max(whole**2 - left**2, 0))
    nothing = left > 0 and all(float(norm) == 0 for _, norm in record.clips)
    ours = any(ids & set(watched.info.names) for ids, _ in record.clips)
    most = left > rule["times"] * limit and not nothing and ours
    if history.in_a_row(rule.slug, nothing or most) != rule["steps"]:
        return
    if nothing:
        says = "clipping is given no gradients at all"
        cause = "a generator of parameters that the optimizer has used up, or parameters of another model"
    else:
        says = (
            f"clipping to {limit:g} is given gradients of norm {clipped:.3g}; those of norm {left:.3g} that the "
            "optimizer uses beside them are not clipped."
        )
        cause = ""
    yield rule.finding(
        severity="fault" if nothing else "warning",
        step=record.number,
        where="gradients",
        says=says,
        cause=cause,
        meant=None if nothing else "",
        sure=0.95 if nothing else 0.7,
        refuted_by=f"a norm of at most {limit:g} at the update",
        evidence={"unclipped": left, "whole": whole, "limit": limit},
    )


@on_step(CLIPPED_EVERY_STEP)
def every_step(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    from torch.optim import SGD

    norm, limit, rule = record.true_norm, record.clipped_to, CLIPPED_EVERY_STEP
    if norm is None or limit is None or record.number <= rule["begun"]:
        return
    plain = all(isinstance(optimizer, SGD) for optimizer in watched.optimizers)
    slowed = history.in_a_row(f"{rule.slug} far", plain and norm > rule["slowed"] * limit) == rule["steps"]
    if history.in_a_row(rule.slug, norm > rule["times"] * limit) == rule["steps"] or slowed:
        yield _hard(record.number, norm, limit, slowed)


@in_log(CLIPPED_EVERY_STEP)
def every_entry(curves: Curves) -> Iterator[Finding]:
    rule, limit, hard, seen = CLIPPED_EVERY_STEP, curves.max_grad_norm, 0, 0
    for step, norm in curves.series.get("grad_norm", []) if limit else ():
        if not limit or not math.isfinite(norm) or norm <= 0:
            continue
        seen += 1
        hard = hard + 1 if seen > rule["begun"] and norm > rule["times"] * limit else 0
        if hard == rule["steps"]:
            yield _hard(step, norm, limit)


def _hard(step: int, norm: float, limit: float, slowed: bool = False) -> Finding:
    rule = CLIPPED_EVERY_STEP
    left = f": updates are {limit / norm:.1g} of what the rate says" if slowed else ""
    return rule.finding(
        severity="warning" if slowed else "notice",
        step=step,
        where="gradient norm",
        says=f"clipping to {limit:g} has cut the gradient by more than {rule['times']:g} in each of "
        f"{rule['steps']:g} entries (norm now {norm:.3g}){left}.",
        sure=0.8,
        evidence={"norm": norm, "limit": limit},
    )
