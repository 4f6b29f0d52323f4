"""When it breaks: where the first number that is none was made, and what heals it.

An operation is to blame when its inputs are finite (or masked on purpose) and its output is not. Then one thing at a
time is changed, and what heals names the cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from limpid.doctor.calls import Call
from limpid.doctor.finding import Finding
from limpid.doctor.model_info import ModelInfo, local
from limpid.doctor.replay.counterfactuals import counterfactuals, smaller_step
from limpid.doctor.replay.non_finite import Origin
from limpid.doctor.replay.step_replay import RecordedPass, replay
from limpid.doctor.step_record import History, StepRecord
from limpid.doctor.watched import Watched


def opened(watched: Watched, record: StepRecord, history: History, loss: float) -> Finding:
    """The finding for a watched step that broke: the first of its micro-batches that shows where."""
    found = None
    rates = record.rates if record.updated else history.last_rates
    for recorded in recorded_passes(watched, record):
        found = localise(recorded, record.number, loss, history.previous, watched, rates)
        if "operation" in found.evidence or found.rule != "not-finite":
            return found
    return found or unseen(watched.info, record.number, loss)


def recorded_passes(watched: Watched, record: StepRecord) -> list[RecordedPass]:
    """The forward passes of a step, as they were."""
    micros = record.micros if len(record.micros) == len(record.calls) else [None] * len(record.calls)
    return [
        RecordedPass(watched.info, call.detached(), micro, rng, autocast)
        for call, micro, rng, autocast in zip(record.calls, micros, record.rng, record.autocast, strict=True)
    ]


def with_smaller_step(finding: Finding, watched: Watched, record: StepRecord) -> Finding:
    """A finding of a loss that rises, with what the step it was seen at does to the loss of its own batch."""
    outcome = smaller_step(recorded_passes(watched, record)[0], watched, record.rates)
    return replace(
        finding,
        says=" ".join([finding.says, *outcome.says]),
        cause=outcome.cause or finding.cause,
        evidence=finding.evidence | outcome.facts,
    )


def unseen(info: ModelInfo, step: int | None, loss: float) -> Finding:
    """The finding for a step that cannot be made again."""
    why = (
        "each process holds a part of the parameters, and none can make the step alone"
        if info.sharded
        else "the call of the model was not seen"
    )
    return _plain(
        step,
        "loss",
        f"{_what(loss)}.",
        f"unknown: {why}",
        "let the doctor see the forward pass: watch(model) before the loop"
        if not info.sharded
        else "make the step again in one process, watched",
        {},
        0.3,
    )


def _what(loss: float) -> str:
    return f"the loss is {loss}" if not math.isfinite(loss) else f"a gradient is not finite (the loss, {loss:.4g}, is)"


def localise(
    recorded: RecordedPass,
    step: int | None,
    loss: float,
    before: Call | None = None,
    watched: Watched | None = None,
    rates: Sequence[float] = (),
) -> Finding:
    """The finding for a step whose loss or gradient is not finite.

    before  the batch before; `watched` and `rates` (of the last update) let that update be taken back
    """
    info, call, micro = recorded.info, recorded.call, recorded.micro
    what = _what(loss)
    bad = {name: int((~torch.isfinite(local(p.detach()))).sum()) for name, p in info.parameters.items()}
    odd = [name for name, count in bad.items() if count]
    if odd:
        count = sum(bad.values())
        return _plain(
            step,
            odd[0],
            f"{what}: {count:,} elements of {len(odd)} parameters are not finite already before the forward pass "
            f"({', '.join(odd[:3])}).",
            "the update before wrote them",
            "look at the step before: its gradients, ε, rate and loss scale",
            {"tensors": odd[:16], "elements": count},
            0.9,
        )
    if info.sharded:
        return unseen(info, step, loss)
    seen = replay(recorded)
    origin, finite = seen.origin, seen.logits_finite
    if origin is None:
        labels = micro.labels if micro is not None and micro.labels is not None else call.labels
        if labels is not None and not bool((labels >= 0).any()):
            return Finding(
                rule="no-labels",
                severity="fault",
                step=step,
                where="batch",
                says=f"{what}: none of the {labels.numel():,} positions has a label, a mean over nothing is 0/0.",
                cause="labels are masked entirely",
                fix="drop such batches, or divide by max(1, labels)",
                refuted_by="a label at or above 0",
                evidence={"labels": 0},
            )
        where = "loss" if finite else "model"
        return _plain(
            step,
            where,
            f"{what}, though the forward pass, repeated, gives finite logits: it arises in the loss, or after the "
            "backward pass.",
            "the loss function, the loss scale, or something that changes gradients",
            "look at the inputs of the loss: log of 0, a division by a count of 0, an overflow in its format",
            {},
            0.6,
        )
    outcome = counterfactuals(recorded, origin, before, watched, list(rates))
    finding = _of(origin, what, step, info)
    return replace(
        finding,
        says=" ".join([finding.says, *outcome.says]),
        cause="; ".join(filter(None, [finding.cause, outcome.cause])),
        evidence=finding.evidence | outcome.facts,
    )


def _of(origin: Origin, what: str, step: int | None, info: ModelInfo) -> Finding:
    op = origin.op.split(".")[0]
    limit = float(torch.finfo(origin.dtype).max)
    format_name = str(origin.dtype).removeprefix("torch.")
    evidence = {
        "operation": origin.op,
        "largest_input": origin.largest,
        "inputs": list(origin.inputs),
        "backward": origin.backward,
    }
    if origin.empty_rows:
        return Finding(
            rule="attention-row-sees-nothing",
            severity="fault",
            step=step,
            where=origin.module,
            says=f"{what}: {origin.empty_rows} rows of a softmax in {origin.module} are all -inf (no visible key), "
            f"so that it is 0/0.",
            cause="the causal mask and the padding mask together hide every key",
            fix="let padded queries see themselves, pad on the right, or use a softmax that gives 0 for an empty row",
            refuted_by="a visible key in each of these rows",
            evidence=evidence | {"empty_rows": origin.empty_rows},
        )
    if origin.exact_largest is not None and origin.exact_largest > limit:
        product = any(word in op for word in ("mm", "bmm", "matmul", "baddbmm", "dot"))
        scores = product and _attends(origin, info)
        evidence |= {"value": origin.exact_largest, "limit": limit}
        return Finding(
            rule="scores-overflow-half" if scores else "overflow-in-half",
            severity="fault",
            step=step,
            where=origin.module,
            says=f"{what}: {origin.module} {'attention scores' if scores else f'({op})'} reached "
            f"{origin.exact_largest:.3g} > {limit:.5g} ({format_name} maximum); the same product of the same numbers "
            f"is finite in float64.",
            cause="query and key norms grew beyond the format" if scores else f"values outgrew {format_name}",
            fix="scale queries before the product, bfloat16, QK-norm, or a lower rate"
            if scores
            else "bfloat16, float32 for this operation, or smaller weights",
            refuted_by=f"a largest value below {limit:.5g}",
            evidence=evidence,
        )
    why = {
        "log": "the logarithm of 0 or of a negative number",
        "div": "a division by 0",
        "sqrt": "the root of a negative number",
        "rsqrt": "1/√0",
        "pow": "a power that overflows",
        "exp": "an exponential that overflows",
        "reciprocal": "1/0",
        "nll_loss_forward": "a mean over no label",
    }
    cause = next(
        (text for word, text in why.items() if op.startswith(word)), f"{op} of numbers up to {origin.largest:.3g}"
    )
    if origin.backward:
        cause += ", in the backward pass"
    return _plain(
        step,
        origin.module,
        f"{what}: the first operation with finite inputs and a result that is not is {op} in "
        f"{origin.module}{' (backward)' if origin.backward else ''}: inputs {', '.join(origin.inputs[:2])} up to "
        f"{origin.largest:.3g}.",
        cause,
        "guard this operation (ε under a root or in a denominator, log_softmax for a log of probabilities, clamp)",
        evidence,
        0.9,
    )


def _attends(origin: Origin, info: ModelInfo) -> bool:
    """Whether a batched product is one of queries and keys: both with 3 axes, inside a module that attends."""
    shapes = [entry[entry.index("[") :].count(",") for entry in origin.inputs]
    return all(count >= 2 for count in shapes[:2]) and len(shapes) >= 2


def _plain(
    step: int | None, where: str, says: str, cause: str, fix: str, evidence: dict[str, Any], sure: float
) -> Finding:
    return Finding(
        rule="not-finite",
        severity="fault",
        step=step,
        where=where,
        says=says,
        cause=cause,
        fix=fix,
        sure=sure,
        refuted_by="a finite result of the same operation",
        evidence=evidence,
    )
