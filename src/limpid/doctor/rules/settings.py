"""Settings whose documentation says what they count in, and which way round: factors, milestones, momenta, limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "settings"
AHEAD = 500
"""Updates that a schedule is run ahead where nobody says how many there will be."""

FACTOR_IS_RATE = Rule(
    "schedule-factor-is-a-rate",
    FAMILY,
    detects="A LambdaLR whose function returns a rate: it is multiplied by the rate of the optimizer once more.",
    equation=r"\eta_t = \eta_0 f(t),\; f(t) \le \eta_0",
    source="documentation of LambdaLR: a function which computes a multiplicative factor",
    threshold="exact: the largest factor is the rate itself, or no factor of a schedule that does not rise any more is "
    "above {small:g} while the rate is at most that",
    thresholds={"small": Threshold(0.02, "who divides a rate by more than fifty would give a smaller one")},
    cost="one simulation of the schedule",
    needs=(Probe.SCHEDULE,),
    cause="a function of the step that returns the rate",
    fix="return rate / base_rate, or give the optimizer lr=1.0",
    refuted_by="a factor of 1 at the peak",
    explains=("learning-rate-too-low", "loss-plateau", "schedule-never-peaks", "loss-never-falls"),
)

NEVER_ACTS = Rule(
    "schedule-never-acts",
    FAMILY,
    detects="A schedule of milestones whose first one lies beyond the end of the run.",
    equation=r"t_1 > T",
    source="documentation of StepLR, MultiStepLR and SequentialLR: milestones count calls of step()",
    threshold="exact: the first milestone, in calls of step(), is larger than the planned number of updates",
    cost="none",
    meant="a short run cut from a long one",
    needs=(Probe.SCHEDULE,),
    cause="milestones in samples or micro-batches, or of a longer run",
    fix="milestones in calls of scheduler.step()",
    refuted_by="a milestone within the run",
)

NEVER_FORGETS = Rule(
    "momentum-without-end",
    FAMILY,
    detects="A momentum that never forgets, or a dampening that lets no gradient in.",
    equation=r"b_t = \mu b_{t-1} + (1 - \tau) g_t,\; \mu \ge 1 \text{ or } \tau \ge 1",
    source="documentation of torch.optim.SGD: momentum, dampening",
    threshold="exact: momentum of 1 or more; or dampening of 1 or more beside a momentum",
    cost="none",
    needs=(Probe.PARAMETERS,),
    cause="a momentum of 1 - μ where μ is meant, or the other way round",
    fix="momentum=0.9, dampening=0",
    refuted_by="both below 1",
    explains=("loss-diverges", "loss-plateau", "update-not-as-predicted", "memory-longer-than-the-run"),
)

STATISTICS_MOMENTUM = Rule(
    "batch-norm-momentum",
    FAMILY,
    detects="Batch norms whose momentum is that of other libraries: the share to keep, not that of the new.",
    equation=r"\hat\mu \leftarrow (1 - m)\, \hat\mu + m\, \mu_{\text{batch}}",
    source="documentation of torch.nn.BatchNorm1d: momentum",
    threshold="exact: momentum from {most:g} up to but not including 1, or 0 with statistics that are still 0 and 1; 1 "
    "is a choice, of methods that adapt within a batch, and so may be what is below {keras:g}",
    thresholds={
        "keras": Threshold(0.95, "who wants the last batch alone says 1"),
        "most": Threshold(0.9, "TensorFlow's and Keras's 0.9, 0.99, 0.997: nine tenths of the last batch alone"),
    },
    cost="none",
    meant="statistics of the last batches alone, as to adapt to where it is now",
    needs=(Probe.PARAMETERS,),
    cause="a momentum of TensorFlow or Keras, which is 1 - m",
    fix="momentum=0.1 for their 0.9, 0.01 for their 0.99",
    refuted_by="a momentum of 0.1 or less",
    explains=("statistics-never-measured",),
)

LIMIT_OF_NOTHING = Rule(
    "clipping-limit-not-positive",
    FAMILY,
    detects="Gradients that are clipped to a length of 0, or below: they vanish, or turn round.",
    equation=r"g \leftarrow g \cdot c / \lVert g \rVert,\; c \le 0",
    source="documentation of clip_grad_norm_ and clip_grad_value_",
    threshold="exact",
    cost="none",
    needs=(Probe.EVENTS,),
    cause="a limit of 0 that was to mean none",
    fix="leave the call out where nothing is to be clipped",
    refuted_by="a limit above 0",
    explains=("step-without-gradients", "gradient-ascent", "loss-never-falls", "weights-never-change", "loss-plateau"),
)


@before_first_step(FACTOR_IS_RATE)
def multiplied_once_more(exam: Exam) -> Iterator[Finding]:
    for scheduler in _fresh(exam, ("LambdaLR",)):
        rates = exam.rates_of_groups(scheduler, min(exam.planned or AHEAD, 4 * AHEAD)) or []
        for base, given in zip(scheduler.base_lrs, zip(*rates, strict=True), strict=False):
            top, small = max(given, default=0.0), FACTOR_IS_RATE["small"]
            if not 0 < base <= 0.1 or top <= 0 or (given[-1] == top and given[0] < top):  # still rising
                continue
            factor = top / base
            exact = abs(factor - base) <= 1e-3 * base
            if not exact and not max(factor, base) <= small:
                continue
            yield FACTOR_IS_RATE.finding(
                severity="fault",
                where="LambdaLR",
                says=f"its function is at most {factor:.3g}, and multiplies the optimizer's rate of {base:.3g}: the "
                f"rate is never above {top:.2g}.",
                meant=None if exact else "a part that is to learn a hundred times more slowly than its rate says",
                sure=1.0 if exact else 0.9,
                evidence={"base": base, "factor": factor, "rate": top},
            )
            return


@before_first_step(NEVER_ACTS)
def beyond_the_run(exam: Exam) -> Iterator[Finding]:
    for scheduler in _fresh(exam, ("StepLR", "MultiStepLR", "SequentialLR")) if exam.total_steps else ():
        milestones = getattr(scheduler, "milestones", getattr(scheduler, "_milestones", None))
        first = min(milestones, default=0) if milestones is not None else scheduler.step_size
        if exam.total_steps and first > exam.total_steps:
            yield NEVER_ACTS.finding(
                severity="warning",
                where=type(scheduler).__name__,
                says=f"the first milestone is at call {first:,} of step(), and the run makes {exam.total_steps:,} "
                "updates: what is to happen there never does.",
                sure=0.9,
                evidence={"first": first, "planned": exam.total_steps},
            )


def _fresh(exam: Exam, kinds: tuple[str, ...]) -> Iterator[Any]:
    """Schedules of these kinds that begin."""
    for scheduler in exam.schedulers:
        inner = getattr(scheduler, "scheduler", scheduler)
        if type(inner).__name__ in kinds and inner.last_epoch <= 0:
            yield inner


@before_first_step(NEVER_FORGETS)
def never_forgets(exam: Exam) -> Iterator[Finding]:
    for index, group in exam.groups:
        momentum, dampening = group.get("momentum"), group.get("dampening", 0.0)
        if not isinstance(momentum, int | float) or not isinstance(dampening, int | float) or not momentum > 0:
            continue
        if momentum >= 1:
            says = f"momentum is {momentum:g}: every gradient is added to all updates to come, and none is forgotten."
        elif dampening >= 1 and not group.get("nesterov"):
            says = f"dampening is {dampening:g}: gradients after the first one count {1 - dampening:g} times."
        else:
            continue
        yield NEVER_FORGETS.finding(
            severity="fault",
            where=f"parameter group {index}",
            says=says,
            meant="dual averaging: the sum of all gradients" if momentum == 1 and dampening == 0 else None,
            evidence={"momentum": float(momentum), "dampening": float(dampening)},
        )
        return


@before_first_step(STATISTICS_MOMENTUM)
def which_share(exam: Exam) -> Iterator[Finding]:
    from torch.nn.modules.batchnorm import _BatchNorm

    norms = [(n, m) for n, m in exam.model.named_modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for name, norm in norms:
        momentum = norm.momentum
        if momentum is None or norm.running_mean is None or norm.running_var is None or not norm.training:
            continue
        fresh = not bool(norm.running_mean.any()) and bool(norm.running_var.eq(1).all())
        if STATISTICS_MOMENTUM["most"] <= momentum < 1:
            says = f"keeps {1 - momentum:.2g} of its statistics at each batch and takes {momentum:.2g} from it alone: "
            says += "evaluations depend on the last batch that was trained on."
        elif momentum == 0 and fresh:
            says = "never changes its statistics, which are 0 and 1: in evaluation it normalises nothing."
        else:
            continue
        yield STATISTICS_MOMENTUM.finding(
            severity="warning" if momentum else "fault",
            meant="" if 0 < momentum < STATISTICS_MOMENTUM["keras"] else None,
            where=name,
            says=f"{name} ({len(norms)} batch norms in all) has momentum {momentum:g}: it {says}",
            sure=0.9,
            evidence={"momentum": momentum, "norms": len(norms)},
        )
        return


@on_step(LIMIT_OF_NOTHING)
def clipped_to_nothing(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    limits = [limit for limit in (record.clipped_to, record.values_clipped_to) if limit is not None and limit <= 0]
    if limits:
        effect = "every gradient becomes 0" if limits[0] == 0 else "every gradient is turned round, uphill"
        yield LIMIT_OF_NOTHING.finding(
            severity="fault",
            step=record.number,
            where="gradients",
            says=f"gradients are clipped to {limits[0]:g}: {effect}.",
            evidence={"limit": limits[0]},
        )
