"""What weight decay takes away: too much at each step, or of what should keep its size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding, Severity
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "decay"

DECAY_TOO_STRONG = Rule(
    "decay-too-strong",
    FAMILY,
    detects="Weight decay that forgets a weight faster than it can be learned.",
    equation=r"1 / (\eta \lambda) \;\text{steps}",
    source="Loshchilov & Hutter 2017, algorithm 2, arXiv:1711.05101; Wang & Aitchison 2024, arXiv:2405.13698",
    threshold="rate times decay above {warning:g}, a fault from {fault:g} on",
    thresholds={
        "warning": Threshold(0.05, "a weight without gradient falls to 1/e in 20 steps; usual are hundreds and more"),
        "fault": Threshold(0.2, "in 5 steps"),
    },
    cost="none",
    needs=(Probe.PARAMETERS,),
    cause="a weight decay meant for another rate, or for a decay that is not multiplied by it",
    fix="weight_decay 0.1 or less at rates near 1e-3: a timescale of thousands of steps",
    meant="a short run, or weights that are to forget (tracking, continual learning)",
    refuted_by="rate times decay below 0.05",
    explains=("loss-plateau", "decay-on-gains", "loss-diverges"),
)

DECAY_ON_GAINS = Rule(
    "decay-on-gains",
    FAMILY,
    detects="Weight decay on gains or biases: they shrink towards 0 for no reason.",
    equation=r"\gamma_{\text{end}} = \gamma_0 \exp(-\textstyle\sum_t \eta_t \lambda)",
    source="Loshchilov & Hutter 2017, algorithm 2, arXiv:1711.05101; minGPT#23",
    threshold="gains and biases multiplied by less than {warning:g} at the end of the schedule, or so far, where the "
    "gains of norms are that much smaller, too; a fault below {fault:g}; a notice otherwise, or when the "
    "schedule's end is not known",
    thresholds={
        "warning": Threshold(0.9, "a tenth off the output of every norm"),
        "fault": Threshold(0.5, "half of it"),
    },
    cost="one simulation of the schedule",
    needs=(Probe.PARAMETERS, Probe.SCHEDULE, Probe.EVENTS),
    cause="one parameter group with weight decay holds tensors of every kind",
    fix="two groups: weight decay for matrices, none for tensors with fewer than 2 dimensions",
    meant="one decay for all parameters, as plain recipes have it",
    refuted_by="weight_decay 0 in their group",
)


@before_first_step(DECAY_TOO_STRONG)
def forgets(exam: Exam) -> Iterator[Finding]:
    """Decoupled decay against the rate: how soon a weight without gradient is gone."""
    decoupled = [
        group
        for optimizer in exam.optimizers
        for group in optimizer.param_groups
        if type(optimizer).__name__ in ("AdamW", "Muon", "SGD", "Lion") or group.get("decoupled_weight_decay")
    ]
    products = [(_peak(exam, group) * float(group.get("weight_decay") or 0), group) for group in decoupled]
    strongest, its = max(products, key=lambda one: one[0], default=(0.0, {}))
    known = bool(exam.planned) or "initial_lr" not in its  # a base of 1 may be what a schedule multiplies
    if strongest > DECAY_TOO_STRONG["warning"]:
        yield DECAY_TOO_STRONG.finding(
            severity="warning" if strongest < DECAY_TOO_STRONG["fault"] else "fault",
            where="weight decay",
            says=f"rate times decay is {strongest:.2g}: each step takes that share of every weight away, and after "
            f"{1 / strongest:.0f} steps 1/e is left of what was learned.",
            meant=None if known and strongest >= DECAY_TOO_STRONG["fault"] else "",
            sure=0.9,
            evidence={"rate_times_decay": strongest},
        )


def _peak(exam: Exam, group: dict[str, Any]) -> float:
    """The largest rate that a group will have; as it was given, where no schedule says."""
    planned = max(exam.rates_of(group)) if exam.planned and exam.schedulers else 0.0
    return planned or float(group.get("initial_lr") or group["lr"] or 0.0)


@before_first_step(DECAY_ON_GAINS)
def will_shrink(exam: Exam) -> Iterator[Finding]:
    groups = [exam.groups[index][1] for index in exam.groups_of_vectors]
    names, decay = exam.decayed_vectors
    if names:
        done = max(float(group["weight_decay"]) * sum(exam.rates_of(group)) for group in groups)
        yield _decays(names, decay, math.exp(-done) if exam.planned else None, None)


@on_step(DECAY_ON_GAINS)
def has_shrunk(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    names, decay = watched.decayed_vectors
    if not record.has_rates or not names:
        return
    for index, group in watched.groups:
        history.decay_done[index] += float(group.get("weight_decay") or 0.0) * record.group_rates.get(index, 0.0)
    done = max(history.decay_done[index] for index in watched.groups_of_vectors)
    factor = math.exp(-done)
    if history.gains_begun is None:
        history.gains_begun = _mean_gain(watched)
    if factor < DECAY_ON_GAINS["warning"] and (record.number % 50 == 0 or done > 0.2):
        left = _mean_gain(watched) / history.gains_begun if history.gains_begun else 1.0
        yield _decays(names, decay, factor, record.number, left)


def _mean_gain(watched: Watched) -> float:
    """Mean size of the gains of norms that are decayed; 0 where there are none."""
    decayed = set(watched.decayed_vectors[0])
    names = [name for name in watched.info.norm_gains if name in decayed]
    gains = [float(watched.info.parameters[name].detach().abs().mean()) for name in names]
    return sum(gains) / len(gains) if gains else 0.0


def _decays(names: list[str], decay: float, factor: float | None, step: int | None, left: float = 0.0) -> Finding:
    """Its severity is what decay will have done to gains, or has where they are `left` of what they were."""
    severity: Severity = "notice"
    worst = None if factor is None else max(factor, left)
    if worst is not None and worst < DECAY_ON_GAINS["warning"]:
        severity = "fault" if worst < DECAY_ON_GAINS["fault"] else "warning"
    when = "this schedule" if step is None else f"until step {step} it"
    effect = f"{when} multiplies them by {factor:.2f}" if factor is not None else ""
    effect += f", and the gains of norms are {left:.2f} of what they were" if left and effect else ""
    return DECAY_ON_GAINS.finding(
        severity=severity,
        step=step,
        where=names[0],
        says=f"weight decay {decay:g} is applied to {len(names)} gains and biases: "
        f"{effect or 'how far it shrinks them depends on the steps to come'}.",
        evidence={"gains": len(names), "decay": decay, "factor": factor},
    )
