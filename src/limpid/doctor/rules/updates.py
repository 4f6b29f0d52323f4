"""What updates do to weights: predicted, then compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, in_log, on_step

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.logs.table import Curves
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.update_sample import UpdateSample
    from limpid.doctor.watched import Watched

FAMILY = "updates"

LOST_TO_ROUNDING = Rule(
    "updates-lost-to-rounding",
    FAMILY,
    detects="Updates too small for the format of the weights: they round to nothing.",
    equation=r"|u| < \tfrac12 \mathrm{ulp}(w) = 2^{\lfloor \log_2 |w| \rfloor - 8} \;\text{in bfloat16}",
    source="Zamirai et al. 2020, section 3, arXiv:2010.06192",
    threshold="a warning above {share:.0%} of the elements at {samples:g} sampled steps in a row, a fault above "
    "{most:.0%} or when every gain stands still ({gain:.0%} of it): below half a step of the format an update is lost "
    "exactly. Not where {against:g} elements moved that rounding to the nearest leaves; of an optimizer that is not "
    "torch's own only once changes add up to {spacings:g} spacing",
    thresholds={
        "share": Threshold(0.2, "Adam's updates spread over a decade, whose lower end always rounds"),
        "most": Threshold(0.5, "most of the weights do not learn"),
        "gain": Threshold(0.99, "a gain near 1 has one spacing everywhere: all of it is lost, or none"),
        "samples": Threshold(2, "one batch may have small gradients"),
        "against": Threshold(
            8, "rounded at random or with a memory thousands do; a prediction from rounded moments errs"
        ),
        "spacings": Threshold(1, "twice the half at which a sum that is remembered must move the weight"),
    },
    cost="a slice of each tensor before and after the update, on sampled steps",
    meant="weights in half precision to save memory, where gains may stay and small updates be lost",
    needs=(Probe.PARAMETERS, Probe.SCHEDULE, Probe.UPDATES),
    fix="keep float32 master weights (autocast instead of .to(bfloat16)), or stochastic rounding, or Kahan sums",
    explains=("loss-plateau", "update-not-as-predicted", "weights-never-change"),
)

NOT_AS_PREDICTED = Rule(
    "update-not-as-predicted",
    FAMILY,
    detects="The applied update is not the size that rate, moments and decay predict.",
    equation=r"\mathrm{RMS}(\Delta w) = \eta\, \mathrm{RMS}(\hat m / (\sqrt{\hat v} + \varepsilon)) + \eta\lambda\,"
    r"\mathrm{RMS}(w)",
    source="Kingma & Ba 2014, section 2.1, arXiv:1412.6980",
    threshold="observed over predicted {factor:g} times off, either way, in {samples:g} sampled steps in a row; not "
    "of a class that puts a step of its own around that of torch's rule",
    thresholds={
        "factor": Threshold(3, "variants of Adam differ by less: AMSGrad, decay through the gradient, corrections"),
        "samples": Threshold(3, "once may be a restored checkpoint"),
    },
    cost="a slice of each tensor and its moments, on sampled steps",
    meant="something else that moves weights on purpose: a projection, noise, an average, lookahead",
    needs=(Probe.UPDATES,),
    cause="something else changes weights or gradients: a second optimizer, a hook, a projection",
    fix="compare w after the step with w - lr·m̂/(√v̂ + ε)",
    refuted_by="a ratio within 1/3 … 3",
    explains=("loss-plateau",),
)

NEVER_CHANGE = Rule(
    "weights-never-change",
    FAMILY,
    detects="A parameter with a gradient that is exactly the same after the updates.",
    equation=r"\Delta w = 0,\; g \neq 0",
    source="definition",
    threshold="exact, over {samples:g} sampled steps with a learning rate above 0; or all tensors beginning {steps:g} "
    "steps as they began the one before; in a log {entries:g} equal losses at its end",
    thresholds={
        "samples": Threshold(3, "one update may be skipped"),
        "steps": Threshold(2, "once may be a restored checkpoint"),
        "entries": Threshold(20, "printed losses of four digits repeat in pairs, not in twenties"),
    },
    cost="a slice of each tensor before and after the update, on sampled steps",
    meant="parts that are held still by hand, as by a mask or by putting them back",
    needs=(Probe.UPDATES, Probe.LOG),
    cause="something restores them, or the optimizer steps other tensors",
    fix="compare a parameter before and after optimizer.step()",
    refuted_by="one changed element",
    explains=("loss-plateau", "loss-never-falls"),
)


STEPPED_TWICE = Rule(
    "stepped-twice",
    FAMILY,
    detects="Two updates with the gradients of one backward pass: each step is made twice.",
    equation=r"\theta_{t+1} = \theta_t + 2 u_t",
    source="definition; event order; torch.amp's documentation: scaler.step(optimizer) calls optimizer.step()",
    threshold="exact: an update without a backward pass since the one before, of the only optimizer, {steps:g} steps "
    "in a row; what a step calls itself, as super().step() or the step of what it wraps, is a part of it, and one that "
    "begins with other weights than the last one left tries it anew",
    thresholds={"steps": Threshold(2, "once may be a retry after an error")},
    cost="none: event counters",
    needs=(Probe.EVENTS, Probe.WEIGHTS_KEPT),
    cause="optimizer.step() beside scaler.step(optimizer), or in the loop and in a callback",
    fix="one of the two",
    refuted_by="a backward pass between any two updates",
    explains=("update-not-as-predicted", "learning-rate-too-high", "schedule-per-micro-batch"),
)


@on_step(STEPPED_TWICE)
def stepped_twice(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    order = [event for event in record.events if event in ("backward", "update")]
    again = len(watched.optimizers) == 1 and ("update", "update") in itertools.pairwise(order)
    again = again and "backward" in order and not record.asides  # else gradients are made by other means
    again = again and not record.moved_between_updates  # a step that is taken back and tried anew
    if history.in_a_row(STEPPED_TWICE.slug, again) == STEPPED_TWICE["steps"]:
        yield STEPPED_TWICE.finding(
            severity="fault",
            step=record.number,
            where="optimizer",
            says="the optimizer steps twice after one backward pass: weights move twice as far, and moments count each "
            "gradient twice.",
            evidence={"order": record.events[:12]},
        )


@before_first_step(LOST_TO_ROUNDING)
def will_be_lost(exam: Exam) -> Iterator[Finding]:
    """Predicted from the rate: Adam's update is about η, and lost below half a step of the format."""
    from limpid.doctor.update_sample import HALVES, lost_share

    rule = LOST_TO_ROUNDING
    adam = [group for _, group in exam.groups if "betas" in group]
    tops = [(group, max([*exam.rates_of(group), float(group["lr"])])) for group in adam]
    narrow = [(p, top) for group, top in tops for p in group["params"] if p.dtype in HALVES and p.requires_grad and top]
    if not narrow:
        return
    named = {exam.info.names.get(id(p), "?"): p for p, _ in narrow}
    top = max(top for _, top in narrow)
    lost = {exam.info.names.get(id(p), "?"): lost_share(p.detach(), own) for p, own in narrow}
    share = sum(lost[name] * p.numel() for name, p in named.items()) / sum(p.numel() for p in named.values())
    gains = [name for name in exam.info.norm_gains if name in lost]
    stuck = [name for name in gains if lost[name] > rule["gain"]]
    everything = bool(gains) and len(stuck) == len(gains)
    if share <= rule["share"] and not everything:
        return
    # an optimizer of other origin may round at random, or keep what rounding takes: seen once it steps
    own = any(not type(optimizer).__module__.startswith("torch.") for optimizer in exam.optimizers)
    kind = str(narrow[0][0].dtype).removeprefix("torch.")
    yield rule.finding(
        severity="notice" if own else "fault" if share > rule["most"] or everything else "warning",
        meant=None if share > rule["most"] else "",
        where=max(lost, key=lambda name: lost[name] * named[name].numel()),
        says=f"{share:.0%} of the weight updates will round to nothing: rates up to {top:.1e} are below half a {kind} "
        f"step of the weights; {len(stuck)} of {len(gains)} gains cannot move at all.",
        cause=f"the weights themselves are {kind}, and the optimizer adds updates to them directly",
        sure=0.95,
        refuted_by="the share of elements that an update changes: near 1 where it was not lost",
        evidence={"lost_share": share, "gains_stuck": len(stuck), "gains": len(gains), "rate": top},
    )


@on_step(LOST_TO_ROUNDING, asks="judged_update")
def lost(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Elements with an update that rounding threw away, in narrow formats."""
    from limpid.doctor.update_sample import HALVES

    rule, update, parameters = LOST_TO_ROUNDING, record.judged_update, watched.info.parameters
    if update is None or max(update.rates) == 0 or not _rounds_to_nearest(watched, record, history):
        return
    narrow = [i for i, name in enumerate(update.names) if name in parameters and parameters[name].dtype in HALVES]
    if not narrow:
        return
    sizes = [parameters[update.names[i]].numel() for i in narrow]
    share = sum(update.lost[i] * size for i, size in zip(narrow, sizes, strict=True)) / sum(sizes)
    gains = [i for i in narrow if update.names[i] in set(watched.info.norm_gains)]
    stuck = [i for i in gains if update.lost[i] > rule["gain"]]
    everything = bool(gains) and len(stuck) == len(gains) and record.number > 3
    if history.in_a_row(rule.slug, share > rule["share"] or everything) < rule["samples"]:
        return
    kind = str(parameters[update.names[narrow[0]]].dtype).removeprefix("torch.")
    rate = max(update.rates)
    what = f"{share:.0%} of the weight updates round to nothing" if share > rule["share"] else "no gain moves"
    yield rule.finding(
        severity="fault" if share > rule["most"] or everything else "warning",
        meant=None if share > rule["most"] else "",
        step=record.number,
        where=update.names[max(narrow, key=lambda i: update.lost[i])],
        says=f"{what} (rate {rate:.1e}, {kind} weights); {len(stuck)} of {len(gains)} gains did not move at all.",
        cause=f"the weights themselves are {kind}, and the optimizer adds updates to them directly",
        refuted_by="elements that change with every update",
        evidence={"lost_share": share, "gains_stuck": len(stuck), "gains": len(gains), "rate": rate},
    )


def _rounds_to_nearest(watched: Watched, record: StepRecord, history: History) -> bool:
    """Whether the optimizer adds updates to the weights and rounds to the nearest, so that what is lost stays lost.

    torch's own do. Another may round at random, or remember what rounding took: then elements move that the nearest
    would leave; and before changes have added up to a spacing of the format nobody can tell.
    """
    rule, update = LOST_TO_ROUNDING, record.judged_update
    assert update is not None
    history.moved_against_rounding += update.against
    steps = record.number - history.rounding_seen
    history.rounding_seen = record.number
    history.spacings += update.spacings * steps
    if history.moved_against_rounding >= rule["against"]:
        return False
    own = any(not type(optimizer).__module__.startswith("torch.") for optimizer in watched.optimizers)
    return not own or history.spacings >= rule["spacings"]


@on_step(NEVER_CHANGE, asks="judged_update")
def still(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Tensors that never move although they have a gradient and the rate is above 0."""
    import torch

    recent = [update for _, update in history.updates[-int(NEVER_CHANGE["samples"]) :]]
    if record.judged_update is None or len(recent) < NEVER_CHANGE["samples"] or any(max(u.rates) == 0 for u in recent):
        return
    parameters = watched.info.parameters
    stuck = [
        name
        for name in recent[-1].names
        if all(update.stands_still(name) and not _rounds_away(update, name) for update in recent)
        and name in parameters
        and parameters[name].dtype == torch.float32
    ]
    if stuck:
        yield NEVER_CHANGE.finding(
            severity="warning",
            step=record.number,
            where=stuck[0],
            says=f"{len(stuck)} tensors ({', '.join(stuck[:3])}) have gradients, and did not change in "
            f"{NEVER_CHANGE['samples']:g} sampled updates.",
            sure=0.9,
            evidence={"tensors": stuck[:32]},
        )


def _rounds_away(update: UpdateSample, name: str) -> bool:
    """Whether the change is, by rate and state, less than half of what float32 can add to the tensor's elements."""
    index = update.names.index(name)
    meant = update.predicted[index] or update.step[index]
    return 0 < meant < 2.0**-24 * update.weight[index]


@on_step(NEVER_CHANGE, asks="judged_update")
def restored(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Weights that begin each step where they began the one before, whatever the update changed."""
    if record.judged_update is None or len(history.updates) < 2:
        return
    (before, first), (now, second) = history.updates[-2:]
    if now == before + 1 and first.names == second.names and any(change > 0 for change in first.change):
        same = all(a.equal(b) for a, b in zip(first.start, second.start, strict=True))
        if history.in_a_row(NEVER_CHANGE.slug, same) == NEVER_CHANGE["steps"]:
            yield NEVER_CHANGE.finding(
                severity="fault",
                step=record.number,
                where=second.names[0],
                says=f"all {len(second.names)} tensors begin step {now} as they began the two before: updates change "
                "them, and something puts them back.",
                cause="weights are loaded or copied back between the steps: an average swapped the wrong way, a "
                "restored copy",
                meant="tasks that each begin at the same weights" if len(watched.optimizers) > 1 else None,
                fix="compare a parameter after optimizer.step() and before the next",
                refuted_by="one element that begins a step elsewhere",
                evidence={"tensors": len(second.names)},
            )


@on_step(NOT_AS_PREDICTED, asks="judged_update")
def size(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Observed over predicted changes."""
    from limpid.doctor.update_sample import adds_to_a_rule

    rule, update = NOT_AS_PREDICTED, record.judged_update
    if update is None or any(adds_to_a_rule(optimizer) for optimizer in watched.optimizers):
        return
    ratios = [
        update.change[i] / update.predicted[i]
        for i in update.matrices()
        if update.predicted[i] > 0 and not update.rounded[i]
    ]
    odd = bool(ratios) and not 1 / rule["factor"] < median(ratios) < rule["factor"]
    if history.in_a_row(rule.slug, odd) == rule["samples"]:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where=update.names[update.matrices()[0]],
            says=f"weights change {median(ratios):.2g} times as much as rate and moments say, {rule['samples']:g} "
            "samples in a row.",
            sure=0.8,
            evidence={"ratio": median(ratios)},
        )


@in_log(NEVER_CHANGE)
def equal_losses(curves: Curves) -> Iterator[Finding]:
    many = int(NEVER_CHANGE["entries"])
    last = curves.series.get("loss", [])[-many:]
    if len(last) == many and len({loss for _, loss in last}) == 1 and last[0][1] != 0:
        step, loss = last[0]
        digits = len(f"{loss:g}".lstrip("0.").replace(".", ""))
        yield NEVER_CHANGE.finding(
            severity="warning",
            step=step,
            where="loss",
            says=f"the loss is exactly {loss:g} for the last {many} entries: the weights do not change, or the number "
            "is not new.",
            cause="a rate of 0, a stale optimizer, a frozen model, or a logger that repeats",
            fix="print a parameter before and after a step",
            meant=None if digits > 2 else "a loss below the digits that are logged",
            sure=0.6,
            refuted_by="two different losses",
            evidence={"loss": loss},
        )
