"""Rewards: what they are earned by, which of them counts, and what becomes of answers that were broken off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, in_curves
from limpid.doctor.trends import NOTHING, grown, last, level, rise

if TYPE_CHECKING:
    from limpid.doctor.logs.table import Curves

FAMILY = "rewards"
OF_A_REWARD = re.compile(r"rewards/([^/]+)/(mean|std)")

REWARD_HACKED = Rule(
    "reward-hacked",
    FAMILY,
    detects="The reward is earned by length: reward, length and distance from the reference rise together, and "
    "something gives way.",
    equation=r"\dot r > 0,\; \dot\ell > 0,\; \mathrm{KL} > H(\pi_0)\;\text{or more answers broken off, or another "
    r"reward falls}",
    source="Gao et al. 2022, section 3, arXiv:2210.10760; Singhal et al. 2023, arXiv:2310.03716",
    threshold="reward, length and KL (where it is logged) have all grown for sure: a slope of the last half, or its "
    "mean against the first three values (Student intervals of block means); and one of several rewards "
    "falls, more answers reach their greatest length, or KL is above the entropy that the policy began with. Rising "
    "together alone is what a task that wants longer answers looks like: nothing is said",
    cost="none: what is logged",
    meant="a task that longer answers solve, with a limit or a reference that is left on purpose",
    needs=(Probe.LOG,),
    cause="a reward that longer, or odd, answers earn without being better",
    fix="read the samples; reward length less or not at all, a larger β, or a reward that cannot be earned so",
    refuted_by="answers that a judge who does not see the reward finds better",
    explains=("kl-explodes",),
)

ONE_REWARD_DROWNS = Rule(
    "reward-scale",
    FAMILY,
    detects="One of several rewards varies so much more than another that the other cannot be heard; or a reward so "
    "large that its price, β KL, counts for nothing.",
    equation=r"(w_j \sigma_j)^2 / \textstyle\sum_i (w_i \sigma_i)^2 < 1/n",
    source="definition: the squared correlation of a sum with one of its parts; of n answers it scatters by 1/n",
    threshold="the share of a reward that varies, in the variance of their weighted sum, below one in n answers of a "
    "step ({answers:g} where nobody says), in the median over the run, of {steps:g} steps or more; and, where β is a "
    "price in rewards that are not divided by their deviation, that of β times the entropy of an answer",
    thresholds={
        "answers": Threshold(4096, "more than most steps draw"),
        "steps": Threshold(10, "a median of fewer is no rule"),
    },
    cost="none: deviations are logged",
    meant="a reward that is to decide where all else is equal, as one of form",
    needs=(Probe.LOG,),
    cause="rewards of different scales are added up as they are",
    fix="bring rewards to one scale, or weigh them (reward_weights), so that each decides between answers now and then",
    refuted_by="weighted deviations within a factor of ten of each other",
    explains=("clipped-every-step",),
)

BROKEN_OFF_COUNTED = Rule(
    "broken-off-counted",
    FAMILY,
    detects="Answers that were broken off at their greatest length are counted as wrong: the reward is about length.",
    equation=r"R^2(r \mid \text{broken off}) > 1/2,\; \bar r_{\text{broken off}} < \bar r_{\text{ended}}",
    source="Yu et al. 2025 (DAPO), section 3.4, arXiv:2503.14476",
    threshold="in draws that hold answers of both kinds, more than {share:.0%} of the variance of the rewards lies "
    "between "
    "those that ended and those that were broken off, which have less, for sure (Student interval of block means); not "
    "where such answers are left out",
    thresholds={"share": Threshold(0.5, "most of what the advantages say is: be shorter")},
    cost="one pass over rewards and last tokens of a draw",
    meant="answers that are to be short: too long is wrong",
    needs=(Probe.BATCH, Probe.LOG),
    cause="max_completion_length cuts answers off before they say what is rewarded, and no answer is left out for it",
    fix="a larger max_completion_length, or --mask-truncated-completions",
    refuted_by="rewards that differ among answers that ended",
    explains=("reward-hacked",),
)

ORDER_LOST = Rule(
    "advantages-clipped",
    FAMILY,
    detects="Answers that are rewarded differently have the same advantage: advantages or rewards are cut off.",
    equation=r"r_i \neq r_j,\; A_i = A_j",
    source="definition: an advantage that is strictly increasing in the reward",
    threshold="of the pairs of answers in a group that are rewarded differently more than {share:.0%} have equal "
    "advantages, for sure (Student interval of block means)",
    thresholds={"share": Threshold(0.25, "a clip at one deviation of a Gaussian loses 5 %, at a half 19 %, at 0 half")},
    cost="one pass over rewards and advantages of a draw",
    meant="advantages of a few levels, as signs, ranks or clipped rewards",
    needs=(Probe.BATCH, Probe.LOG),
    cause="advantages, or rewards before them, are clipped to a range far narrower than theirs",
    fix="divide by the deviation of the group first, clip after it, at 5 or more deviations; or do not clip",
    refuted_by="advantages in the order of the rewards",
)


@in_curves(REWARD_HACKED)
def hacked(curves: Curves) -> Iterator[Finding]:
    reward, length, kl = (curves.values(name) for name in ("reward", "answer_length", "kl"))
    if not all(grown(values) for values in (reward, length, *([kl] if kl else []))):
        return
    gave_way = "; ".join(_gives_way(curves))
    if gave_way:
        yield REWARD_HACKED.finding(
            severity="warning",
            step=curves.series["reward"][-1][0],
            where="rewards",
            says=f"the reward rose from {reward[0]:.3g} to {reward[-1]:.3g} while answers grew from {length[0]:.3g} to "
            f"{length[-1]:.3g} tokens{' and KL rose' if kl else ''}, and {gave_way}.",
            sure=0.7,
            evidence={"reward": reward[-1], "length": length[-1], "gave_way": gave_way},
        )


def _gives_way(curves: Curves) -> Iterator[str]:
    """What shows that answers are not simply better."""
    for name in curves.series:
        found = OF_A_REWARD.fullmatch(name)
        if found and found[2] == "mean" and (change := rise(last(curves.values(name), 0.5))).falls:
            yield f"the reward {found[1]} falls by {-change.middle:.3g}"
    cut = curves.values("broken_off")
    if grown(cut):
        yield f"{level(last(cut, 0.5)).middle:.0%} of them, after {cut[0]:.0%}, are broken off at their greatest length"
    begun, now = curves.values("entropy")[:5], level(last(curves.values("kl"), 1 / 3))
    if begun and now.low > sum(begun) / len(begun):
        entropy = sum(begun) / len(begun)
        yield f"KL is {now.middle:.3g} nats a token, more than the {entropy:.3g} of entropy that the policy began with"


@in_curves(ONE_REWARD_DROWNS)
def drowns(curves: Curves) -> Iterator[Finding]:
    rule, tuning = ONE_REWARD_DROWNS, curves.tuning
    names = [found[1] for name in curves.series if (found := OF_A_REWARD.fullmatch(name)) and found[2] == "std"]
    answers = tuning.answers if tuning is not None and tuning.answers else int(rule["answers"])
    weights = tuning.reward_weights if tuning is not None else ()
    weighed = dict(zip(names, weights or [1.0] * len(names), strict=False))
    sizes = {name: abs(weighed.get(name, 1.0)) * _median(curves.values(f"rewards/{name}/std")) for name in names}
    least = min((name for name in names if sizes[name] > 0), key=lambda name: sizes[name], default=None)
    seen = min((len(curves.series[f"rewards/{name}/std"]) for name in names), default=0)
    step = max((curves.series[f"rewards/{name}/std"][-1][0] for name in names), default=0)
    total = sum(size**2 for size in sizes.values())
    if least is not None and seen >= rule["steps"] and sizes[least] ** 2 < total / answers:
        most = max(names, key=lambda name: sizes[name])
        yield _drowned(step, f"the reward {least}", sizes[least], f"{most}'s {sizes[most]:.3g}", total, answers)
    yield from _price_drowns(curves, answers)


def _price_drowns(curves: Curves, answers: int) -> Iterator[Finding]:
    """β KL against a reward that is not divided by its deviation: sharpening never costs more than the entropy."""
    tuning, spread = curves.tuning, curves.series.get("reward_std", [])
    if tuning is None or tuning.objective != "rloo" or not tuning.beta or len(spread) < ONE_REWARD_DROWNS["steps"]:
        return
    entropy, length = _median(curves.values("entropy")[:5]), _median(curves.values("answer_length"))
    price, size = tuning.beta * entropy * length, _median([value for _, value in spread])
    if 0 < price**2 < size**2 / answers:
        yield _drowned(
            spread[-1][0], "β times the entropy of an answer", price, f"the reward's {size:.3g}", size**2, answers
        )


def _drowned(step: int, what: str, size: float, other: str, total: float, answers: int) -> Finding:
    return ONE_REWARD_DROWNS.finding(
        severity="warning",
        step=step,
        where="rewards",
        says=f"{what} varies by {size:.3g} beside {other}: {size**2 / total:.1e} of the variance, which {answers:,} "
        "answers a step cannot tell from chance.",
        sure=0.8,
        evidence={"deviation": size, "share": size**2 / total, "answers": answers},
    )


@in_curves(BROKEN_OFF_COUNTED)
def broken_off(curves: Curves) -> Iterator[Finding]:
    rule, tuning = BROKEN_OFF_COUNTED, curves.tuning
    if tuning is not None and tuning.learns_from_broken_off is False:
        return
    points = curves.series.get("told_by_length", [])
    sure = level([value for _, value in points])
    if sure is NOTHING or sure.low <= rule["share"]:
        return
    cut = _median(curves.values("broken_off"))
    yield rule.finding(
        severity="warning",
        step=points[-1][0],
        where="rewards",
        says=f"{sure.middle:.0%} of the variance of the rewards is between answers that ended and those that were "
        f"broken off at their greatest length ({cut:.0%} of them), which are counted as wrong.",
        sure=0.9,
        evidence={"share": sure.middle, "broken_off": cut},
    )


@in_curves(ORDER_LOST)
def order_lost(curves: Curves) -> Iterator[Finding]:
    points = curves.series.get("lost_order", [])
    sure = level([value for _, value in points])
    if sure.low > ORDER_LOST["share"]:
        yield ORDER_LOST.finding(
            severity="warning",
            step=points[-1][0],
            where="advantages",
            says=f"{sure.middle:.0%} of the pairs of answers that are rewarded differently have the same advantage.",
            sure=0.9,
            evidence={"share": sure.middle},
        )


def _median(values: list[float]) -> float:
    from statistics import median

    return median(values) if values else 0.0
