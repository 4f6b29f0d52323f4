"""Configuration before the first step: schedules, modes, loaded weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from limpid.doctor.calls import find_logits
from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding, Severity
from limpid.doctor.model_info import local
from limpid.doctor.rounding import sample
from limpid.doctor.schedules import peak
from limpid.doctor.undisturbed import seeded, undisturbed


def schedule_to_its_end(exam: Exam) -> Iterator[Finding]:
    rates = exam.rates
    if not rates or len(rates) < 10:
        return
    top, given = max(rates), peak(exam.schedulers, [group for _, group in exam.groups])
    if given and top < 0.9 * given:
        yield Finding(
            rule="schedule-never-peaks",
            severity="warning",
            where=type(exam.schedulers[0]).__name__,
            says=f"in {len(rates)} updates the rate reaches {top:.1e} of {given:.1e} ({top / given:.0%}): the warm-up "
            "is longer than the run.",
            cause="warm-up given in micro-batches, samples or for another number of processes",
            fix="warm-up in updates",
            sure=0.95,
            refuted_by=f"a rate of {given:.1e} before update {len(rates)}",
            evidence={"top": top, "given": given},
        )
    per_epoch = any(type(scheduler).__name__ in PER_EPOCH for scheduler in exam.schedulers)
    yield from over_early(rates, type(exam.schedulers[0]).__name__, None, "notice" if per_epoch else "warning")


PER_EPOCH = ("StepLR", "MultiStepLR", "ExponentialLR", "CosineAnnealingLR", "PolynomialLR", "MultiplicativeLR")
"""Schedules that many advance once per epoch: whether these advance with every update is only seen in the loop."""


def over_early(
    rates: Sequence[float], name: str, step: int | None, severity: Severity = "warning"
) -> Iterator[Finding]:
    """Rates, one per update to the planned end, of which a quarter is as good as 0."""
    top = max(rates)
    tail = next((i for i in range(len(rates) - 1, -1, -1) if rates[i] >= 0.01 * top), -1)
    idle = len(rates) - 1 - tail
    if top and idle > 0.25 * len(rates):
        yield Finding(
            rule="schedule-ends-early",
            severity=severity,
            step=step,
            where=name,
            says=f"the rate is below 1 % of its peak from update {tail + 2} of {len(rates)} on: "
            f"{idle / len(rates):.0%} of the run learns nothing.",
            cause="the schedule was made for fewer updates than the run makes",
            fix="give it the number of optimizer updates",
            sure=0.9,
            refuted_by="a rate above 1 % of the peak for most of it",
            evidence={"end": tail + 1, "planned": len(rates)},
        )


def schedule_of_another_optimizer(exam: Exam) -> Iterator[Finding]:
    ours = {id(optimizer) for optimizer in exam.optimizers}
    ours |= {id(getattr(optimizer, "optimizer", None)) for optimizer in exam.optimizers}
    for scheduler in exam.schedulers:
        target = getattr(getattr(scheduler, "scheduler", scheduler), "optimizer", None)
        target = getattr(target, "optimizer", target)
        if target is not None and ours and id(target) not in ours:
            yield Finding(
                rule="schedule-of-another-optimizer",
                severity="fault",
                where=type(scheduler).__name__,
                says="the schedule sets the rate of another optimizer than the one that steps.",
                cause="the optimizer was created again after the schedule",
                fix="build the schedule last",
                refuted_by="scheduler.optimizer is optimizer",
            )


def dropout_in_evaluation(exam: Exam) -> Iterator[Finding]:
    call = exam.probe
    if call is None or exam.plain is None:
        return
    with undisturbed(exam.model):
        exam.model.eval()
        seeded(1)
        other = find_logits(call.make(exam.model))
    if other is None:
        return
    moved = float((other.float() - exam.plain).abs().nan_to_num(0.0).max())
    if moved > exam.rounding:
        yield Finding(
            rule="dropout-in-evaluation",
            severity="warning",
            where="model",
            says=f"two evaluations of one batch in evaluation mode differ by {moved:.2g} (rounding "
            f"{exam.rounding:.0e}).",
            cause="dropout that does not look at self.training: a functional call without training=…, or dropout_p set",
            fix="dropout_p=self.dropout if self.training else 0.0",
            refuted_by="equal logits",
            evidence={"moved": moved, "rounding": exam.rounding},
        )


def weights_not_loaded(exam: Exam) -> Iterator[Finding]:
    info = exam.info
    fresh, gains = info.fresh_gains()
    blocks = [block for block, _ in info.blocks]
    by_block = {block: [n for n in info.norm_gains if n.startswith(block + ".")] for block in blocks}
    drawn = [
        b
        for b, names in by_block.items()
        if names and all(_constant(info.parameters[n]) for n in names) and _gaussian(exam, b)
    ]
    mixed = bool(drawn) and any(
        names and all(not _constant(info.parameters[n]) for n in names) for names in by_block.values()
    )
    everything = exam.pretrained and gains and fresh == gains
    if not everything and not mixed:
        return
    std = [
        float(local(p.detach()).float().std()) for n, p in info.parameters.items() if p.ndim >= 2 and info.block_of(n)
    ]
    typical = sorted(std)[len(std) // 2] if std else math.nan
    loss = ""
    if exam.loss_gradients and everything:
        mean = float(exam.loss_gradients[0].surprise[exam.loss_gradients[0].labelled].mean())
        loss = f", and the first loss {mean:.2f} is that of fresh weights (ln V = "
        f"{math.log(exam.loss_gradients[0].shape[-1]):.2f})"
    yield Finding(
        rule="weights-not-loaded",
        severity="fault",
        where=drawn[0] if mixed else "model",
        says=f"weights are still at initialisation: all {gains} gains exactly constant, std {typical:.4f}{loss}."
        if everything
        else f"{', '.join(drawn[:4])} {'is' if len(drawn) == 1 else 'are'} still at initialisation (gains "
        f"exactly constant, Gaussian matrices) while other blocks are trained.",
        cause="no key of the checkpoint matched (a prefix such as 'model.'), and strict=False said nothing",
        fix="load_state_dict(…, strict=True), or look at what it returns: missing_keys, unexpected_keys",
        sure=0.97,
        refuted_by="gains that differ from each other",
        evidence={"gains": gains, "constant": fresh, "std": typical, "blocks": drawn},
    )


def _constant(gain: torch.Tensor) -> bool:
    values = local(gain.detach()).flatten()
    return bool((values == values[:1]).all())


def _gaussian(exam: Exam, block: str) -> bool:
    """Whether the matrices of a block are spread like a fresh draw, Gaussian or uniform (kurtosis 3 or 1.8)."""
    found = False
    for name, parameter in exam.info.parameters.items():
        if not name.startswith(block + ".") or parameter.ndim < 2:
            continue
        values = sample(parameter, 65536).float()
        spread = values.std(correction=0)
        if not bool(spread > 0):
            continue
        kurtosis = float(((values - values.mean()) / spread).pow(4).mean())
        error = 5 * math.sqrt(24 / values.numel())
        if min(abs(kurtosis - 3), abs(kurtosis - 1.8)) > error:
            return False
        found = True
    return found


def moments_at_zero(exam: Exam) -> Iterator[Finding]:
    """Steps counted but moments empty: the optimizer was not restored with the weights."""
    advanced = [s for s in exam.schedulers if getattr(s, "last_epoch", 0) > 0]
    empty = [o for o in exam.optimizers if not o.state and any("betas" in g for g in o.param_groups)]
    if advanced and empty:
        yield Finding(
            rule="resume-is-not-one",
            severity="warning",
            where="optimizer",
            says=f"the schedule stands at step {advanced[0].last_epoch}, but the optimizer has no moments: the run "
            "was resumed without them.",
            cause="optimizer.state_dict() was not saved or not loaded",
            fix="save and load the optimizer's state too",
            sure=0.9,
            refuted_by="moments in optimizer.state",
            evidence={"schedule": advanced[0].last_epoch},
        )


EXAM = [
    schedule_to_its_end,
    schedule_of_another_optimizer,
    dropout_in_evaluation,
    weights_not_loaded,
    moments_at_zero,
]
