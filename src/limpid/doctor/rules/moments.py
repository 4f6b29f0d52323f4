"""What an adaptive rule remembers: moments beside their count, decay beside the gradient, memory beside the run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "moments"

MOMENTS_DO_NOT_FIT = Rule(
    "moments-do-not-fit",
    FAMILY,
    detects="Adam's moments and its count of steps tell of different runs: one of them was lost.",
    equation=r"\hat m / \sqrt{\hat v} = (1 - \beta_1) / \sqrt{1 - \beta_2} \;\text{where } m = v = 0,\; t \gg 1",
    source="Kingma & Ba 2014, section 3, arXiv:1412.6980: bias correction is of the count",
    threshold="exact: before the first step a count above 0 with v = 0 in every tensor, or a count of 0 with v that is "
    "not; in the loop a count that goes back {times:g} times, a notice where the rate each time falls below {low:.0%} "
    "of what it was, or rises above what {low:.0%} of it was: it begins anew, too",
    thresholds={
        "times": Threshold(2, "to begin anew once is a method of training"),
        "low": Threshold(0.5, "a schedule without a restart neither halves nor doubles the rate in one step"),
    },
    cost="one look at v before the first step; one number per step",
    meant="moments begun anew on purpose, with each task, merge or round",
    needs=(Probe.PARAMETERS, Probe.EVENTS),
    cause="optimizer.state was cleared, or saved and loaded in part",
    fix="save and load optimizer.state_dict() as a whole; leave its state alone while the run goes on",
    refuted_by="moments that began with the count",
    explains=("update-not-as-predicted", "loss-spike", "loss-plateau", "resume-is-not-one"),
)

DECAY_OUTWEIGHS = Rule(
    "decay-outweighs-gradient",
    FAMILY,
    detects="Weight decay that goes through Adam's moments and is larger than the gradient: it decides each step.",
    equation=r"\lambda \lVert w \rVert / \lVert g \rVert > 1,\; h = g + \lambda w,\; \Delta w = -\eta\, \hat{h} / "
    r"(\sqrt{\hat v} + \varepsilon) \to -\eta\, \mathrm{sign}(w)",
    source="Loshchilov & Hutter 2017, section 2, arXiv:1711.05101",
    threshold="of an adaptive rule with decay in the gradient: decay above {outweighs:g} times the gradient in "
    "matrices that hold the most of the parameters; a fault above {fault:g} times",
    thresholds={
        "outweighs": Threshold(5, "gradients of fresh weights grow severalfold in the first steps"),
        "fault": Threshold(10, "the gradient changes a step by a tenth"),
    },
    cost="norms of the weights, and of one backward pass",
    meant="gradients that are small at first alone, behind layers that begin at 0; a strong decay on purpose",
    needs=(Probe.PARAMETERS, Probe.BACKWARD),
    cause="weight_decay of Adam, NAdam, RAdam, RMSprop or Adagrad is added to the gradient, and divided by √v̂ with it",
    fix="AdamW (decoupled_weight_decay=True), or a decay a hundred times smaller",
    refuted_by="a gradient larger than decay times weight",
    explains=("loss-plateau", "loss-never-falls", "weights-never-change"),
)

MEMORY_TOO_LONG = Rule(
    "memory-longer-than-the-run",
    FAMILY,
    detects="Momentum that remembers as many steps as the run has: the last step goes where the first ones pointed.",
    equation=r"1 / (1 - \beta_1) > T / 4",
    source="Kingma & Ba 2014, algorithm 1, arXiv:1412.6980: m is a mean over 1 / (1 - β₁) steps",
    threshold="more than {share:.0%} of the planned updates, and {steps:g} steps or more",
    thresholds={
        "share": Threshold(0.25, "a direction that is a quarter of a run old"),
        "steps": Threshold(200, "0.995: what is below is in use, in runs of any length"),
    },
    cost="none",
    meant="a short run cut from a long one, or a mean over the whole run on purpose",
    needs=(Probe.PARAMETERS, Probe.SCHEDULE),
    cause="β₁ (or momentum) of a much longer run, or β₂ in its place",
    fix="0.9: ten steps",
    refuted_by="a run of more steps",
    explains=("loss-plateau", "loss-diverges"),
)

COUPLED = ("Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta")
"""Adaptive rules of torch that add the decay to the gradient, unless told otherwise."""


@before_first_step(MOMENTS_DO_NOT_FIT)
def lost(exam: Exam) -> Iterator[Finding]:
    for optimizer in exam.optimizers:
        states = [s for s in getattr(optimizer, "state", {}).values() if isinstance(s, dict) and _known(s)]
        counted = [s for s in states if float(s["step"]) > 0]
        empty = [s for s in counted if not bool(s["exp_avg_sq"].any())]
        uncounted = [s for s in states if float(s["step"]) == 0 and bool(s["exp_avg_sq"].any())]
        betas = [float(beta) for beta in optimizer.param_groups[0].get("betas", (0.9, 0.999))]
        factor = (1 - betas[0]) / math.sqrt(max(1 - betas[1], 1e-30))
        if counted and len(empty) == len(counted):
            count = max(float(s["step"]) for s in counted)
            yield _does_not_fit(
                f"the optimizer counts {count:,.0f} steps, and its moments are 0 in all {len(counted)} tensors: "
                f"nothing corrects for that, and the first updates are {factor:.2g} times the rate where 1 is meant",
                {"count": count, "tensors": len(counted), "first_update": factor},
            )
        elif uncounted and len(uncounted) == len(states):
            yield _does_not_fit(
                f"the optimizer has moments in {len(uncounted)} tensors, and counts no step: they are divided by 1 - β "
                f"as if they were the first, and updates are {1 / max(factor, 1e-30):.2g} times what they should be",
                {"count": 0, "tensors": len(uncounted), "first_update": 1 / max(factor, 1e-30)},
            )


def _known(state: dict[str, Any]) -> bool:
    return "step" in state and hasattr(state.get("exp_avg_sq"), "any") and state["exp_avg_sq"].is_floating_point()


@on_step(MOMENTS_DO_NOT_FIT)
def counted_anew(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """The count of the first tensor that has one."""
    if not record.updated or len(watched.optimizers) != 1:
        return
    state = getattr(watched.optimizers[0], "state", {})
    found = next((s["step"] for s in state.values() if isinstance(s, dict) and "step" in s), None)
    if found is None:
        return
    before, history.count = history.count, float(found)
    if history.count >= before:
        return
    now, last = max(record.rates, default=0.0), max(history.last_rates, default=0.0)
    low = MOMENTS_DO_NOT_FIT["low"]
    history.restarts += now < low * last or low * now > last  # warmed up again, or begun again from the top
    if history.times(MOMENTS_DO_NOT_FIT.slug) == MOMENTS_DO_NOT_FIT["times"]:
        meant = history.restarts == MOMENTS_DO_NOT_FIT["times"]
        yield _does_not_fit(
            f"the optimizer's count went back, from {before:,.0f} to {history.count:,.0f}, for the second time: "
            "moments begin at 0 again and again" + (", each time with a rate that begins anew" if meant else ""),
            {"count": history.count, "before": before},
            record.number,
            meant,
        )


def _does_not_fit(says: str, evidence: dict[str, Any], step: int | None = None, meant: bool = False) -> Finding:
    return MOMENTS_DO_NOT_FIT.finding(
        severity="notice" if meant else "warning" if step else "fault",
        step=step,
        where="optimizer",
        says=f"{says}.",
        cause="a restart with a schedule of its own, it seems" if meant else "",
        fix="nothing, if that is meant" if meant else "",
        meant="" if step else None,
        sure=0.5 if meant else 0.85 if step else 0.97,
        evidence=evidence,
    )


@before_first_step(DECAY_OUTWEIGHS)
def decays_more_than_it_learns(exam: Exam) -> Iterator[Finding]:
    from limpid.doctor.weights import root_mean_square

    rule, norms, found = DECAY_OUTWEIGHS, exam.gradient_norms, []
    for optimizer in exam.optimizers:
        for group in optimizer.param_groups if type(optimizer).__name__ in COUPLED else ():
            decay = float(group.get("weight_decay") or 0)
            for p in group["params"] if decay and not group.get("decoupled_weight_decay") else ():
                name = exam.info.names.get(id(p), "")
                norm = norms.get(name)
                if p.ndim >= 2 and norm:
                    size = root_mean_square(p) * math.sqrt(p.numel())
                    found.append((decay * size / norm, p.numel(), name, decay))
    found.sort(reverse=True)
    sums = list(itertools.accumulate(size for _, size, _, _ in found))
    middle = (entry for entry, up_to in zip(found, sums, strict=True) if 2 * up_to > sums[-1])
    ratio, _, name, decay = next(middle, (0.0, 0, "", 0.0))
    if ratio <= rule["outweighs"]:
        return
    yield rule.finding(
        severity="fault" if ratio > rule["fault"] else "warning",
        where=name,
        says=f"weight decay {decay:g} is added to the gradient and is {ratio:.3g} times as large (norms in {name}): "
        "what is divided by √v̂ is the decay, and each step moves each weight towards 0 by the whole rate.",
        sure=0.9,
        evidence={"decay": decay, "decay_over_gradient": ratio, "matrices": len(found)},
    )


@before_first_step(MEMORY_TOO_LONG)
def remembers_too_long(exam: Exam) -> Iterator[Finding]:
    rule, planned = MEMORY_TOO_LONG, exam.planned
    for index, group in exam.groups if planned else ():
        betas = group.get("betas")
        first = float(betas[0]) if isinstance(betas, tuple | list) and betas else float(group.get("momentum") or 0)
        memory = 1 / max(1 - first, 1e-9)
        if planned and memory > rule["share"] * planned and memory >= (1 - 1e-6) * rule["steps"]:
            yield rule.finding(
                severity="warning",
                where=f"parameter group {index}",
                says=f"momentum of {first:g} is a mean over {memory:,.0f} steps, of {planned:,} planned.",
                sure=0.85,
                evidence={"momentum": first, "memory": memory, "planned": planned},
            )
            return
