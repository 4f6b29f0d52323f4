"""The rates of parameter groups beside each other: a schedule that does not reach all, rates that were made one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "group_rates"

SCHEDULE_MISSES_GROUP = Rule(
    "schedule-misses-group",
    FAMILY,
    detects="A schedule that moves the rate of one parameter group, and leaves another's as it was given.",
    equation=r"\eta_i(t) = \eta_i\, s(t) \;\text{for all groups } i",
    source="definition; torch.optim.lr_scheduler: one factor for all groups, unless each is given a function of its "
    "own",
    threshold="of groups that optimizers of one kind were given with one rate, one has changed at {changes:g} updates "
    "and by {times:g} times or more, and another at none; where rates were given apart a notice; not where the "
    "schedule has a function for each group",
    thresholds={
        "changes": Threshold(5, "one change, or two, may be meant for a part"),
        "times": Threshold(1.5, "by less is not worth a word"),
    },
    cost="none: rates are there",
    needs=(Probe.SCHEDULE, Probe.EVENTS),
    cause="optimizer.param_groups[0]['lr'] = rate, or a schedule of one of two optimizers",
    fix="for group in optimizer.param_groups: group['lr'] = rate * group['scale']; or a scheduler for each optimizer",
    meant="a schedule for one part alone, or for one player of two",
    refuted_by="another rate of that group",
    explains=("loss-plateau",),
)

RATES_MADE_EQUAL = Rule(
    "group-rates-made-equal",
    FAMILY,
    detects="Parameter groups that were given rates of their own, and are all stepped at one.",
    equation=r"\eta_i(t) / \eta_j(t) = \eta_i / \eta_j",
    source="definition",
    threshold="rates of one optimizer that were given {times:g} times apart or more, and are equal and above 0 at each "
    "of the first {updates:g} updates",
    thresholds={
        "times": Threshold(1.5, "by less is not worth a word"),
        "updates": Threshold(3, "the first of a warm-up may be the same for all"),
    },
    cost="none: rates are there",
    needs=(Probe.SCHEDULE, Probe.EVENTS),
    cause="the loop writes one rate into every group",
    fix="group['lr'] = group['initial_lr'] * factor, or a scheduler of torch.optim",
    refuted_by="two different rates",
    explains=("loss-plateau", "learning-rate-too-high"),
)


@on_step(SCHEDULE_MISSES_GROUP)
def left_behind(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, rates = SCHEDULE_MISSES_GROUP, history.group_rates
    if not record.has_rates or _own_functions(watched):
        return
    kinds = _kinds(watched)
    moved = [i for i, r in rates.items() if r.changes >= rule["changes"] and r.high >= rule["times"] * r.low > 0]
    still = [i for i, r in rates.items() if i in kinds and not r.changes and r.updates > rule["changes"] and r.low > 0]
    pairs = [(a, b) for b in still for a in moved if a in kinds and kinds[a][0] == kinds[b][0]]
    alike = [(a, b) for a, b in pairs if kinds[a][1] == kinds[b][1]]
    if not pairs:
        return
    one, other = (alike or pairs)[0]
    size = sum(p.numel() for p in dict(watched.groups)[other]["params"])
    yield rule.finding(
        severity="warning" if alike else "notice",
        step=record.number,
        where=f"parameter group {other}",
        says=f"the rate of parameter group {other} ({size:,} parameters) has stayed at {rates[other].low:.1e} for "
        f"{rates[other].updates} updates, while that of group {one} went between {rates[one].low:.1e} and "
        f"{rates[one].high:.1e}: the schedule does not reach it.",
        meant=None if _split_by_decay(watched, one, other) else "",
        sure=0.9 if alike else 0.4,
        evidence={
            "group": other,
            "rate": rates[other].low,
            "moved": one,
            "from": rates[one].low,
            "to": rates[one].high,
        },
    )


@on_step(RATES_MADE_EQUAL)
def made_equal(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, kinds = RATES_MADE_EQUAL, _kinds(watched)
    if len(watched.optimizers) != 1 or not record.has_rates or len(history.rates) > rule["updates"]:
        return
    given = {i: kinds[i][1] for i in record.group_rates if i in kinds and kinds[i][1] > 0}
    now = {record.group_rates[i] for i in given}
    apart = len(given) > 1 and max(given.values()) >= rule["times"] * min(given.values())
    if history.in_a_row(rule.slug, apart and len(now) == 1 and min(now) > 0) != rule["updates"]:
        return
    high, low = max(given, key=lambda i: given[i]), min(given, key=lambda i: given[i])
    yield rule.finding(
        severity="warning",
        step=record.number,
        where=f"parameter group {high}",
        says=f"groups {high} and {low} were given rates of {given[high]:.1e} and {given[low]:.1e}, and every update is "
        f"made with one rate for both, now {min(now):.1e}.",
        sure=0.85,
        evidence={"given": {str(i): rate for i, rate in given.items()}, "rate": min(now)},
    )


def _kinds(watched: Watched) -> dict[int, tuple[str, float]]:
    """Of each group that trains something the kind of its optimizer, and the rate that it was given."""
    owner = {id(group): type(o).__name__ for o in watched.optimizers for group in o.param_groups}
    return {
        index: (owner.get(id(group), ""), watched.given_rates[index])
        for index, group in watched.groups
        if index in watched.given_rates and any(p.requires_grad for p in group["params"])
    }


def _split_by_decay(watched: Watched, one: int, other: int) -> bool:
    """Whether two groups are parts of one optimizer that differ in their weight decay alone."""
    groups = dict(watched.groups)
    owners = [{id(o) for o in watched.optimizers if any(groups[i] is g for g in o.param_groups)} for i in (one, other)]
    decays = [groups[i].get("weight_decay") for i in (one, other)]
    return owners[0] == owners[1] and decays[0] != decays[1]


def _own_functions(watched: Watched) -> bool:
    """Whether a schedule has a function for each group."""
    return any(_differ(part) for one in watched.schedulers for part in [one, *getattr(one, "_schedulers", [])])


def _differ(scheduler: Any) -> bool:
    return len({id(function) for function in getattr(scheduler, "lr_lambdas", [])}) > 1
