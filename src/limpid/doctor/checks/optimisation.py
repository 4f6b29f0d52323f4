"""Optimisation before the first step: what the optimizer holds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding, Severity
from limpid.doctor.loss_gradient import LossGradient
from limpid.doctor.model_info import local


def membership(exam: Exam) -> Iterator[Finding]:
    """Every trainable parameter once, and nothing else."""
    if not exam.optimizers:
        return
    held = [parameter for _, group in exam.groups for parameter in group["params"]]
    ids = {id(parameter) for parameter in held}
    ours = {id(parameter): name for name, parameter in exam.info.parameters.items()}
    total = sum(parameter.numel() for parameter in exam.info.parameters.values())
    strangers = [parameter for parameter in held if id(parameter) not in ours]
    storages = {_storage(parameter) for parameter in exam.info.parameters.values()}
    strangers = [
        parameter for parameter in strangers if _storage(parameter) not in storages
    ]  # a flat view is no stranger
    missing = [
        (name, parameter)
        for name, parameter in exam.info.parameters.items()
        if parameter.requires_grad
        and id(parameter) not in ids
        and _storage(parameter) not in {_storage(p) for p in held}
    ]
    replaced = [name for name, parameter in missing if any(s.shape == parameter.shape for s in strangers)]
    if strangers and (replaced or all(id(p) not in ours for p in held)):
        size = sum(parameter.numel() for parameter in strangers)
        yield Finding(
            rule="optimizer-holds-strangers",
            severity="fault",
            where=", ".join(replaced[:4]) or "all parameters",
            says=f"{len(strangers)} tensors in the optimizer ({size:,} parameters) are not the model's: "
            f"{', '.join(replaced[:3]) or 'all of them'}{' and more' if len(replaced) > 3 else ''} "
            f"{'was' if len(replaced) == 1 else 'were'} replaced after the optimizer was created, and will never "
            "change.",
            cause="modules were replaced, copied or reloaded after the optimizer was built",
            fix="build the optimizer last, from the final model's parameters()",
            refuted_by="the same identity of tensor in model.parameters() and in param_groups",
            evidence={"strangers": len(strangers), "parameters": size, "replaced": len(replaced)},
        )
        missing = [(name, p) for name, p in missing if name not in replaced]
    if missing:
        size = sum(parameter.numel() for _, parameter in missing)
        shown = ", ".join(name for name, _ in missing[:4]) + (" and more" if len(missing) > 4 else "")
        yield Finding(
            rule="parameters-not-in-optimizer",
            severity="fault",
            where=missing[0][0],
            says=f"{shown} ({size:,} parameters, {size / total:.0%} of the model) are trainable but in no parameter "
            "group: they will never change.",
            cause="parameter groups were built from some modules only, or a module was added after the optimizer",
            fix="build the groups from model.named_parameters(), and assert that they cover it; freeze what should "
            "not train with requires_grad_(False)",
            refuted_by="these tensors in a param_group",
            evidence={"tensors": len(missing), "parameters": size, "names": [name for name, _ in missing[:32]]},
        )
    twice = {id(p) for p in held if sum(id(p) == id(q) for q in held) > 1} if len(held) < 5000 else set()
    if twice:
        names = [ours.get(key, "?") for key in twice]
        yield Finding(
            rule="parameter-in-two-groups",
            severity="fault",
            where=names[0],
            says=f"{len(names)} parameters are held more than once ({', '.join(names[:4])}): each step updates them "
            "twice.",
            cause="groups overlap",
            fix="build each group from names that no other group has",
            refuted_by="one group per tensor",
            evidence={"tensors": len(names)},
        )


def _storage(parameter: Tensor) -> int:
    """What two views of one tensor share; an empty part of a tensor shares nothing."""
    return local(parameter).data_ptr() or id(parameter)


def decay_on_gains(exam: Exam) -> Iterator[Finding]:
    gains, tables = [], []
    rate, decay = 0.0, 0.0
    for _, group in exam.groups:
        amount = float(group.get("weight_decay") or 0.0)
        if not amount:
            continue
        for parameter in group["params"]:
            name = exam.info.names.get(id(parameter))
            if name is None or not parameter.requires_grad:
                continue
            if parameter.ndim < 2:
                gains.append(name)
            elif name in exam.info.embedding_names:
                tables.append(name)
            else:
                continue
            rate, decay = max(rate, float(group["lr"])), max(decay, amount)
    if not gains and not tables:
        return
    rates = exam.rates or ([rate] * exam.planned if exam.planned else None)
    factor = math.exp(-decay * sum(rates)) if rates else None
    yield decayed(gains, tables, decay, factor, None)


def decayed(gains: list[str], tables: list[str], decay: float, factor: float | None, step: int | None) -> Finding:
    """The finding for decay on what should not decay; its severity is what it will have done."""
    severity: Severity = "notice"
    if gains and factor is not None and factor < 0.9:
        severity = "fault" if factor < 0.5 else "warning"
    what = (
        f"{len(gains)} gains and biases" if gains else f"{len(tables)} embedding table{'s' if len(tables) > 1 else ''}"
    )
    effect = (
        "how far it shrinks them depends on the steps to come" if factor is None else f"multiplies them by {factor:.2f}"
    )
    when = "this schedule" if step is None else f"until step {step} it"
    return Finding(
        rule="decay-on-gains",
        severity=severity,
        step=step,
        where=(gains or tables)[0],
        says=f"weight decay {decay:g} is applied to {what}: "
        + (f"{when} {effect}." if factor is not None else f"{effect}."),
        cause="one parameter group with weight decay holds tensors of every kind",
        fix="two groups: weight decay for matrices, none for tensors with fewer than 2 dimensions and for embeddings",
        refuted_by="weight_decay 0 in their group",
        evidence={"gains": len(gains), "embeddings": len(tables), "decay": decay, "factor": factor},
    )


def epsilon_dominates(exam: Exam) -> Iterator[Finding]:
    """Predicted from one backward pass: √v̂ of the first step is the gradient itself."""
    trial = None if exam.call is not None else exam.trial
    if trial is None or not trial.norms:
        return
    over, matrices, worst = [], 0, (0.0, "", 0.0)
    scale = float(exam.scaler.get_scale()) if exam.scaler is not None and exam.scaler.is_enabled() else 1.0
    clip = 1.0
    for _, group in exam.groups:
        if "betas" not in group or not isinstance(group.get("eps"), float):
            continue
        for parameter in group["params"]:
            name = exam.info.names.get(id(parameter), "")
            norm = trial.norms.get(name)
            if parameter.ndim < 2 or not norm:
                continue
            matrices += 1
            size = clip * norm / math.sqrt(parameter.numel())  # RMS of the gradient
            share = group["eps"] / (size + group["eps"])
            if share > 0.5:
                over.append(name)
                if share > worst[0]:
                    worst = (share, name, size)
    if matrices and len(over) > matrices / 2:
        eps = max(float(group.get("eps") or 0) for _, group in exam.groups)
        yield epsilon_finding(len(over), matrices, eps, worst[2], worst[1], None, scale)


def epsilon_finding(
    over: int, matrices: int, eps: float, size: float, where: str, step: int | None, scale: float = 1.0
) -> Finding:
    return Finding(
        rule="epsilon-dominates",
        severity="fault" if over > 0.8 * matrices and eps > 10 * size else "warning",
        step=step,
        where=where,
        says=f"in {over} of {matrices} matrices eps = {eps:g} exceeds √v̂ (about {size:.1e} in {where}): Adam behaves "
        f"like SGD with rate lr/eps, and updates are {eps / max(size, 1e-30):,.0f} times smaller than intended.",
        cause="eps is not small against the gradients"
        + (" (which shrink with the loss's factor)" if eps <= 1e-5 else ""),
        fix="eps 1e-8 … 1e-15, always below the gradient's RMS; and a loss that is a mean, not divided again",
        sure=0.95,
        refuted_by="a median of eps/(√v̂ + eps) below 0.5",
        evidence={"matrices_over": over, "matrices": matrices, "eps": eps, "gradient_rms": size, "loss_scale": scale},
    )


def learning_rate_zero(exam: Exam) -> Iterator[Finding]:
    if exam.rates and max(exam.rates) == 0:
        yield zero_rate(None, len(exam.rates))


def zero_rate(step: int | None, steps: int) -> Finding:
    return Finding(
        rule="learning-rate-zero",
        severity="fault",
        step=step,
        where="every parameter group",
        says=f"the learning rate is 0 at {'all' if step is None else 'each of the last'} {steps} steps: nothing can "
        "change.",
        cause="rate, warm-up or schedule give 0",
        fix="print optimizer.param_groups[0]['lr'] over the run; give the schedule a rate to scale",
        refuted_by="a rate above 0",
        evidence={"steps": steps},
    )


def steps_would_be_enormous(exam: Exam) -> Iterator[Finding]:
    """Adam's first update is about η per element: predicted against the size of the matrices."""
    ratios = []
    for _, group in exam.groups:
        if "betas" not in group:
            continue
        top = max([*(exam.rates or []), float(group["lr"])])
        for parameter in group["params"]:
            if parameter.ndim >= 2 and parameter.requires_grad:
                size = float(local(parameter.detach()).float().pow(2).mean().sqrt())
                if size > 0:
                    ratios.append((top / size, exam.info.names.get(id(parameter), "?"), top, size))
    if len(ratios) < 3:
        return
    ratios.sort()
    ratio, name, top, size = ratios[len(ratios) // 2]
    if ratio < 1:
        return
    yield Finding(
        rule="learning-rate-too-high",
        severity="warning" if ratio < 3 else "fault",
        where=name,
        says=f"Adam's first updates are about the rate itself: {top:g} per element, {ratio:.1f} times the size of the "
        f"weights (RMS {size:.2g} in {name}); a single step replaces what was learned.",
        cause="the learning rate is too high for weights of this size",
        fix=f"a rate near {0.05 * size:.0e} (5 % of the weights' RMS per step), and a warm-up",
        sure=0.85,
        refuted_by="a loss that falls steadily at this rate",
        evidence={"update_over_weight": ratio, "rate": top, "weight_rms": size},
    )


def ascent(exam: Exam) -> Iterator[Finding]:
    for reading in exam.loss_gradients[:1]:
        yield from ascending(reading, None)
    for index, group in exam.groups:
        if group.get("maximize") and exam.loss_gradients and not exam.loss_gradients[0].inverted:
            yield ascends(None, f"parameter group {index}", "the optimizer maximises (maximize=True) a cross-entropy")


def ascending(reading: LossGradient, step: int | None) -> Iterator[Finding]:
    """The gradient of the logits has the sign of a loss that is raised."""
    if reading.inverted:
        yield ascends(
            step,
            "loss",
            "the gradient of the logits is that of -log p, negated: every step makes the targets less likely",
        )


def ascends(step: int | None, where: str, says: str) -> Finding:
    return Finding(
        rule="gradient-ascent",
        severity="fault",
        step=step,
        where=where,
        says=f"{says}.",
        cause="a sign: -loss, maximize=True, or a log-probability taken for a loss",
        fix="minimise the loss",
        sure=0.95,
        refuted_by="a negative gradient at the target of each position",
    )


def betas_swapped(exam: Exam) -> Iterator[Finding]:
    for index, group in exam.groups:
        betas = group.get("betas")
        if "eps" not in group or not isinstance(betas, tuple | list) or len(betas) != 2:
            continue
        first, second = (float(beta) for beta in betas)
        if first**2 < math.sqrt(second):
            continue
        yield Finding(
            rule="betas-swapped",
            severity="warning",
            where=f"parameter group {index}",
            says=f"betas = ({first:g}, {second:g}): β₁²/√β₂ = {first**2 / math.sqrt(max(second, 1e-30)):.2f}, "
            "below 1 is "
            "required; the mean of the gradient is slower than the scale it is divided by, so that old gradients are "
            "divided by the size of new ones.",
            cause="β₁ and β₂ were exchanged",
            fix=f"betas=({second:g}, {first:g})",
            refuted_by="β₁²/√β₂ below 1",
            evidence={"beta1": first, "beta2": second},
        )
        return


def decay_too_strong(exam: Exam) -> Iterator[Finding]:
    """Decoupled decay against the rate: how soon a weight without gradient is gone."""
    decoupled = [
        group
        for optimizer in exam.optimizers
        for group in optimizer.param_groups
        if type(optimizer).__name__ in ("AdamW", "Muon", "SGD", "Lion") or group.get("decoupled_weight_decay")
    ]
    peaks = [
        float(group.get("initial_lr") or group["lr"]) * float(group.get("weight_decay") or 0) for group in decoupled
    ]
    strongest = max(peaks, default=0.0)
    if strongest <= 0.05:
        return
    yield Finding(
        rule="decay-too-strong",
        severity="warning" if strongest < 0.2 else "fault",
        where="weight decay",
        says=f"rate times decay is {strongest:.2g}: each step takes that share of every weight away, and after "
        f"{1 / strongest:.0f} steps 1/e is left of what was learned.",
        cause="a weight decay meant for another rate, or for a decay that is not multiplied by it",
        fix="weight_decay 0.1 or less at rates near 1e-3: a timescale of thousands of steps",
        sure=0.9,
        refuted_by="rate times decay below 0.05",
        evidence={"rate_times_decay": strongest},
    )


EXAM = [
    ascent,
    membership,
    betas_swapped,
    decay_too_strong,
    decay_on_gains,
    epsilon_dominates,
    learning_rate_zero,
    steps_would_be_enormous,
]
