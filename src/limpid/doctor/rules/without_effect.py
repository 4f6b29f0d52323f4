"""What the loop makes and has no effect: an optimizer that is never stepped, a schedule whose rates are overwritten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "without_effect"
MOST = 1000
"""Updates that a schedule is followed for, at most."""

OPTIMIZER_IDLE = Rule(
    "optimizer-never-steps",
    FAMILY,
    detects="One of several optimizers is never stepped, though what it holds gets gradients, which are thrown away.",
    equation=r"g_t \neq 0,\; \theta_{t+1} = \theta_t \;\text{for all}\; t",
    source="definition",
    threshold="no step of it at {looks:g} looks in a row, at each of which another optimizer stepped and a parameter "
    "that it alone holds had a gradient other than 0; none where gradients are kept for a step to come",
    thresholds={"looks": Threshold(13, "the first 3 updates and every tenth of 100: a part that begins later does so")},
    cost="one gradient of each optimizer that has not stepped, on sampled steps",
    needs=(Probe.EVENTS,),
    cause="its step() is missing beside its zero_grad()",
    fix="call step() of every optimizer",
    refuted_by="one step of it",
    explains=("weights-never-change", "loss-plateau", "nothing-learned"),
)

SCHEDULE_OVERWRITTEN = Rule(
    "schedule-overwritten",
    FAMILY,
    detects="A schedule that is stepped, and whose rate somebody else replaces before each update.",
    equation=r"\eta_t = c \neq \eta^{\text{schedule}}_t \;\text{for all}\; t",
    source="documentation of torch.optim.lr_scheduler: get_last_lr",
    threshold="at none of {updates:g} updates or more the rate of any group that the schedule has set, but for the "
    "first; at the last {same:g} of them one and the same rate instead, and {same:g} different ones of the schedule",
    thresholds={
        "updates": Threshold(30, "who keeps a rate from falling too low follows the schedule before"),
        "same": Threshold(20, "of rates that are scaled none comes twice"),
    },
    cost="none: rates are there",
    needs=(Probe.SCHEDULE, Probe.EVENTS),
    cause="two schedules on one optimizer, of which the second (LambdaLR, a warm-up) sets the rate anew; or a loop "
    "that writes it",
    fix="SequentialLR([warmup, decay], milestones=[…]), or ChainedScheduler; or leave one of them out",
    refuted_by="an update with the rate of get_last_lr()",
    explains=("loss-plateau", "learning-rate-too-high"),
)


@on_step(OPTIMIZER_IDLE, asks="sampled")
def never_stepped(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, looks = OPTIMIZER_IDLE, history.idle_looks
    if not record.sampled or not record.updated:
        return
    for number, optimizer in enumerate(watched.optimizers):
        waits = id(optimizer) in record.idle and id(optimizer) not in record.kept
        looks[id(optimizer)] = looks[id(optimizer)] + 1 if waits else 0
        if history.made[id(optimizer)] or looks[id(optimizer)] < rule["looks"]:
            continue
        names = [watched.info.names.get(id(p), "?") for group in optimizer.param_groups for p in group["params"]]
        size = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        yield rule.finding(
            severity="warning",
            step=record.number,
            where=names[0],
            says=f"optimizer {number} ({type(optimizer).__name__}, {len(names)} tensors, {size:,} parameters: "
            f"{', '.join(names[:3])}) has never been stepped in {record.number} updates, while their gradients were "
            "computed and cleared: these weights stand still.",
            sure=0.9,
            evidence={"optimizer": number, "tensors": len(names), "parameters": size},
        )


@on_step(SCHEDULE_OVERWRITTEN)
def overwritten(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule = SCHEDULE_OVERWRITTEN
    for number, (scheduled, actual) in record.scheduled.items():
        seen = history.scheduled[number]
        if number in history.followed or len(seen) > MOST:
            continue
        seen.append((scheduled, actual))
        if len(seen) > 1 and _meet(scheduled, actual):
            history.followed.add(number)
            seen.clear()
        if len(seen) < rule["updates"]:
            continue
        last = seen[-int(rule["same"]) :]
        if len({a for _, a in last}) > 1 or len({s for s, _ in last}) < rule["same"] or not min(actual):
            continue
        kind = type(watched.schedulers[number]).__name__
        yield rule.finding(
            severity="warning",
            step=record.number,
            where=kind,
            says=f"the schedule {kind} has set {scheduled[0]:.4g}, but the update is made with {actual[0]:.4g}, as the "
            f"{len(last)} before it: its rate is overwritten before each update, and it has had no effect at any of "
            f"{len(seen)}.",
            sure=0.9,
            evidence={"scheduled": scheduled[0], "rate": actual[0], "updates": len(seen)},
        )


def _meet(scheduled: tuple[float, ...], actual: tuple[float, ...]) -> bool:
    return any(a == b for a, b in zip(scheduled, actual, strict=False))
