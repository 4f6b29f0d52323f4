"""Numerics before the first step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from limpid.doctor.checks.optimisation import ascends
from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding
from limpid.doctor.loss_gradient import LossGradient
from limpid.doctor.ranks import processes
from limpid.doctor.replay.nan_replay import localise, unseen
from limpid.doctor.replay.step_replay import RecordedPass
from limpid.doctor.rounding import lost_share

HALVES = (torch.float16, torch.bfloat16)


def attention_row_sees_nothing(exam: Exam) -> Iterator[Finding]:
    call = exam.usual_call
    if call is None or call.ids is None:
        return
    blind = [(index, heads) for index, heads in enumerate(exam.all_heads) if heads.blind]
    if not blind:
        return
    _, heads = blind[0]
    broken = exam.first_output_finite is False
    rows = ", ".join(str(row) for row in heads.blind_rows)
    yield Finding(
        rule="attention-row-sees-nothing",
        severity="fault" if broken else "notice",
        where=f"batch rows {rows}",
        says=f"{heads.blind} query rows of batch rows {rows} have no visible key: their softmax over all -inf is 0/0"
        + ("." if broken else "; here the kernel answers 0, others answer NaN."),
        cause="the causal mask and the padding mask together hide every key (left padding)",
        fix="let padded queries see themselves, pad on the right, or use a softmax that gives 0 for an empty row",
        refuted_by="a visible key in each of these rows",
        evidence={"rows": heads.blind, "batch_rows": list(heads.blind_rows), "attentions": len(blind)},
    )


def overflow_in_half(exam: Exam) -> Iterator[Finding]:
    """Infinities that later operations make finite again, so that nothing but the learning shows them."""
    if exam.heads is not None and exam.overflowed is not None:
        yield overflows(exam.overflowed, None)


def overflows(operation: str, step: int | None) -> Finding:
    return Finding(
        rule="overflow-in-half",
        severity="fault",
        step=step,
        where=operation,
        says=f"{operation} of finite float16 numbers is infinite: a value went beyond 65504.",
        cause="sums or squares of many numbers formed in float16",
        fix="form them in float32, or use bfloat16",
        refuted_by="a largest value below 65504",
    )


def half_gradients_flush_to_zero(exam: Exam) -> Iterator[Finding]:
    for reading in exam.loss_gradients[:1]:
        yield from flushed(reading, None, exam.scaler is not None and exam.scaler.is_enabled())


def flushed(reading: LossGradient, step: int | None, scaled: bool) -> Iterator[Finding]:
    """Logit gradients that are exactly 0 although probabilities are not."""
    labels, vocab = max(1, reading.labels), reading.shape[-1]
    if scaled or reading.zeros < 0.1 or reading.tiny < 0.5 * reading.zeros:
        return
    # a softmax of float32 logits underflows below exp(-103); such a spread explains zeros without any half format
    if reading.largest > 40 or reading.logit_std > 6:
        return
    uniform = 1 / (labels * vocab)
    yield Finding(
        rule="half-gradients-flush-to-zero",
        severity="fault" if reading.zeros > 0.5 else "warning",
        step=step,
        where="gradient of the logits",
        says=f"{reading.zeros:.0%} of the logit gradients are exactly 0: p/N is about {uniform:.1e} ({labels:,} "
        f"labels, {vocab:,} words), float16 ends at 6.0e-8, and the loss is not scaled.",
        cause="gradients pass through float16 without loss scaling",
        fix="scale the loss (torch.amp.GradScaler) or use bfloat16",
        sure=0.95,
        refuted_by="the share of exact zeros with the loss multiplied by 65,536: about 0",
        evidence={"zeros": reading.zeros, "uniform_gradient": uniform, "labels": labels, "vocab": vocab},
    )


def epsilon_rounds_to_zero(exam: Exam) -> Iterator[Finding]:
    for index, group in exam.groups:
        eps = group.get("eps")
        if not isinstance(eps, float) or eps <= 0:
            continue
        kinds = {p.dtype for p in group["params"] if p.is_floating_point()}
        for kind in kinds:
            if float(torch.tensor(eps).to(kind)) == 0:
                smallest = torch.finfo(kind).smallest_normal * torch.finfo(kind).eps
                name = str(kind).removeprefix("torch.")
                yield Finding(
                    rule="epsilon-rounds-to-zero",
                    severity="fault",
                    where=f"parameter group {index}",
                    says=f"eps = {eps:g} is 0 in {name} (smallest number {smallest:.2g}): a parameter whose gradient "
                    "is 0 becomes 0/0 at the first update.",
                    cause=f"the optimizer works in {name}, the format of the parameters",
                    fix="keep float32 parameters and moments (autocast), or eps ≥ 1e-4 in half precision",
                    refuted_by=f"a {name} value of eps other than 0",
                    evidence={"eps": eps, "smallest": smallest},
                )


def updates_lost_to_rounding(exam: Exam) -> Iterator[Finding]:
    """Predicted from the rate: Adam's update is about η, and lost below half a step of the format."""
    adam = [group for _, group in exam.groups if "betas" in group]
    narrow = [p for group in adam for p in group["params"] if p.dtype in HALVES and p.requires_grad]
    if not narrow:
        return
    top = max([*(exam.rates or []), *(float(group["lr"]) for group in adam)])
    if not top:
        return
    names = exam.info.names
    lost = {names.get(id(p), "?"): lost_share(p.detach(), top) for p in narrow}
    elements = {names.get(id(p), "?"): p.numel() for p in narrow}
    total = sum(elements.values())
    share = sum(lost[name] * elements[name] for name in lost) / total
    gains = [name for name in exam.info.norm_gains if name in lost]
    stuck = [name for name in gains if lost[name] > 0.99]
    if share <= 0.2 and not (gains and len(stuck) == len(gains)):
        return
    worst = max(lost, key=lambda name: lost[name] * elements[name])
    # an optimizer of other origin may round at random, or keep what rounding takes: seen once it steps
    own = any(not type(optimizer).__module__.startswith("torch.") for optimizer in exam.optimizers)
    kind = str(narrow[0].dtype).removeprefix("torch.")
    yield Finding(
        rule="updates-lost-to-rounding",
        severity="notice" if own else "fault" if share > 0.5 or (gains and len(stuck) == len(gains)) else "warning",
        where=worst,
        says=f"{share:.0%} of the weight updates will round to nothing: rates up to {top:.1e} are below half a {kind} "
        f"step of the weights; {len(stuck)} of {len(gains)} gains cannot move at all.",
        cause=f"the weights themselves are {kind}, and the optimizer adds updates to them directly",
        fix="keep float32 master weights (autocast instead of .to(bfloat16)), or stochastic rounding, or Kahan sums",
        sure=0.95,
        refuted_by="the share of elements that an update changes: near 1 where it was not lost",
        evidence={"lost_share": share, "gains_stuck": len(stuck), "gains": len(gains), "rate": top},
    )


def gradient_is_not_the_gradient(exam: Exam) -> Iterator[Finding]:
    trial = None if exam.call is not None else exam.trial
    if trial is None or trial.slope is None or abs(trial.slope - 1) < 0.1:
        return
    if processes() > 1:  # the gradient is the mean over all of them, the loss this one's alone
        exam.skipped.note(
            "gradient-is-not-the-gradient", f"{processes()} processes share one gradient: examine one alone"
        )
        return
    if abs(trial.slope + 1) < 0.1:
        yield ascends(
            None, "gradients", "along its own gradient the loss falls as steeply as the gradient says it rises"
        )
        return
    halves = any(reading.dtype in HALVES for reading in trial.loss_gradients)
    if halves and 0.5 < trial.slope < 2:
        return
    yield Finding(
        rule="gradient-is-not-the-gradient",
        severity="warning" if not halves else "notice",
        where="loss",
        says=f"along its own gradient the loss changes {trial.slope:.3g} times as much as the gradient says.",
        cause="a backward pass (hand-written, fused, compiled, or with a part of the graph detached) is not the "
        "derivative of its forward pass",
        fix="compare gradients with the plain implementation of each custom operation (torch.autograd.gradcheck)",
        sure=0.8,
        refuted_by="a ratio within 0.9 … 1.1 for a smaller step",
        evidence={"ratio": trial.slope},
    )


def not_finite(exam: Exam) -> Iterator[Finding]:
    trial = None if exam.call is not None else exam.trial
    if trial is None or (trial.loss == trial.loss and abs(trial.loss) != float("inf")):
        return
    if exam.usual_call is None:
        yield unseen(exam.info, None, trial.loss)
    else:
        yield localise(RecordedPass(exam.info, exam.usual_call, exam.micros[0]), None, trial.loss)


EXAM = [
    attention_row_sees_nothing,
    overflow_in_half,
    half_gradients_flush_to_zero,
    epsilon_rounds_to_zero,
    updates_lost_to_rounding,
    gradient_is_not_the_gradient,
    not_finite,
]
