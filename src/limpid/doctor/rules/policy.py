"""A policy that learns from its own answers: whether it is the one that drew them, and how far it leaves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, in_curves
from limpid.doctor.trends import NOTHING, grown, last, level, rise

if TYPE_CHECKING:
    from limpid.doctor.logs.table import Curves

FAMILY = "policy"

RATIO_NOT_ONE = Rule(
    "ratio-not-one",
    FAMILY,
    detects="The policy that is trained gives other probabilities to the answers than the one that drew them.",
    equation=r"\rho_t = \pi_\theta(y_t) / \pi_{\text{old}}(y_t) = 1 \;\text{before the first update on a draw}",
    source="Schulman et al. 2017, eq. 6, arXiv:1707.06347; trl#6789",
    threshold="at the first step on a draw of answers a ratio further from 1 than {exact:.1e} in a run of limpid, "
    "whose "
    "draws are scored by the kernels that train, or a mean ratio further than {mean:.3g} in another tool's; not with "
    "dropout, which makes two passes differ",
    thresholds={
        "exact": Threshold(2.0**-15, "32 roundings of float32, 2^-24 each, of a log-probability of 16 nats"),
        "mean": Threshold(2.0**-4, "32 roundings of bfloat16, 2^-9 each: a mean over many tokens is off by less"),
    },
    cost="none: the ratios are logged",
    needs=(Probe.LOG,),
    cause="sampler and trainer differ: other weights, another temperature, mask, template or format, or answers that "
    "were drawn before an update",
    fix="form old log-probabilities by the trainer's own forward pass, at the temperature of the draw, on the tokens "
    "that were drawn",
    refuted_by="a ratio of 1 at the first step on a draw",
    explains=("kl-explodes", "loss-diverges", "gradient-explodes"),
)

NOT_IN_GROUPS = ("ppo", "reinforce_plus_plus", "distill")
"""Objectives whose advantages do not compare the answers to one prompt."""

GROUPS_ALIKE = Rule(
    "groups-without-variance",
    FAMILY,
    detects="Most prompts teach nothing, because all their answers are rewarded alike.",
    equation=r"\Pr(\sigma_r = 0) > 1/2",
    source="Yu et al. 2025 (DAPO), section 3.2, arXiv:2503.14476",
    threshold="the share of groups whose rewards are all equal is above {share:.0%} for sure: the lower end of its "
    "Student interval over the run, of block means; not where groups are not compared, nor where steps with more of "
    "them earn more (the sign of the correlation): those are prompts that are solved",
    thresholds={"share": Threshold(0.5, "most of the answers are drawn for nothing")},
    cost="none: the share is logged",
    meant="hard prompts of which few are solved yet, or easy ones that most answers solve",
    needs=(Probe.LOG,),
    cause="the prompts are too hard or too easy for this model, or the reward tells too little",
    fix="prompts that the model answers now and then, more answers to each (num_generations), or a reward with steps "
    "between wrong and right",
    refuted_by="rewards that differ within most groups",
    explains=("loss-plateau",),
)

KL_EXPLODES = Rule(
    "kl-explodes",
    FAMILY,
    detects="A policy that goes on leaving its reference, beyond what making up its mind would take.",
    equation=r"\mathrm{KL}(\pi \Vert \pi_0) > H(\pi_0) \ge -\ln \max_y \pi_0(y) \;\text{and rising}",
    source="Schulman 2020, joschu.net/blog/kl-approx.html; H ≥ -ln max p: definition of the entropy",
    threshold="in the last third of the run KL is above the entropy that the policy began with, for sure (Student "
    "interval of block means), and the reward has not grown, or no longer grows while KL does; where no entropy is "
    "logged, KL doubles in the last half, and grows there at {pace:g} of its earlier pace or more, in logarithms",
    thresholds={
        "pace": Threshold(0.5, "a power of time grows at a quarter of its earlier pace, an exponential at all of it")
    },
    cost="none: both are logged",
    suffers=True,
    needs=(Probe.LOG,),
    cause="too high a rate, too small a β, or rewards that only answers far from the reference earn",
    fix="a lower learning rate, a β above 0 or a larger one, fewer updates per draw",
    refuted_by="a KL that levels off, or that stays below the entropy of the reference",
    explains=("loss-diverges", "gradient-explodes"),
)


@in_curves(RATIO_NOT_ONE)
def ratio_not_one(curves: Curves) -> Iterator[Finding]:
    """At the first step on a draw; of another tool, which says nothing of draws, at the first step of all."""
    tuning, rule = curves.tuning, RATIO_NOT_ONE
    if tuning is not None and tuning.updates_per_draw and not tuning.dropout:
        points = [*curves.series.get("ratio_min", ()), *curves.series.get("ratio_max", ())]
        first = [(step, ratio) for step, ratio in points if (step - 1) % tuning.updates_per_draw == 0]
        bound = rule["exact"]
    elif tuning is None:
        first = [point for point in curves.series.get("ratio", ()) if point[0] == 1]
        first += curves.series.get("sampler_ratio", ())
        bound = rule["mean"]
    else:
        return
    off = sorted((step, ratio) for step, ratio in first if bound < abs(ratio - 1) < math.inf)  # inf is of no answer
    if not off:
        return
    step, ratio = off[0]
    worst = max((ratio for _, ratio in off), key=lambda ratio: abs(ratio - 1))
    yield rule.finding(
        severity="fault" if tuning is not None else "warning",
        step=step,
        where="ratios",
        says=f"before any update on a draw the ratio is {ratio:.6g} at step {step:,}, {worst:.6g} at worst, not 1 "
        f"within {float(bound):.1e}: the answers were drawn, or scored, by another policy.",
        meant=None if tuning is not None else "answers of an older policy, as asynchronous samplers give them",
        evidence={"ratio": ratio, "worst": worst, "bound": float(bound), "draws": len(off)},
    )


@in_curves(GROUPS_ALIKE)
def groups_alike(curves: Curves) -> Iterator[Finding]:
    points = curves.series.get("equal_groups", [])
    if curves.tuning is not None and curves.tuning.objective in NOT_IN_GROUPS:
        return
    shares = [share for _, share in points]
    sure = level(shares)
    if sure.low <= GROUPS_ALIKE["share"] or _solved(points, dict(curves.series.get("reward", []))):
        return
    cut = level(curves.values("broken_off"))
    short = cut.low > GROUPS_ALIKE["share"]
    yield GROUPS_ALIKE.finding(
        severity="warning",
        step=points[-1][0],
        where="rewards",
        says=f"in {sure.middle:.0%} of the groups all answers are rewarded alike, over {len(shares)} steps: they "
        "have no advantage and teach nothing"
        + (f"; {cut.middle:.0%} of the answers are broken off at their greatest length." if short else "."),
        cause="answers are broken off before they say what is rewarded: max_completion_length is too short"
        if short
        else "",
        fix="a larger max_completion_length, or a model that ends its answers" if short else "",
        sure=0.9,
        evidence={"share": sure.middle, "at_least": sure.low, "steps": len(shares)},
    )


def _solved(equal: Sequence[tuple[int, float]], rewards: Mapping[int, float]) -> bool:
    """Whether groups that are rewarded alike are the better rewarded ones: steps with more of them earn more."""
    pairs = [(share, rewards[step]) for step, share in equal if math.isfinite(rewards.get(step, math.nan))]
    if len({share for share, _ in pairs}) < 2 or len({reward for _, reward in pairs}) < 2:
        return False
    return statistics.correlation(*zip(*pairs, strict=True)) > 0


@in_curves(KL_EXPLODES)
def kl_explodes(curves: Curves) -> Iterator[Finding]:
    if "chosen" in curves.series:  # of judged answers what is called kl is a baseline
        return
    for kl, entropy in (("kl", "entropy"), ("answer_kl", "answer_entropy")):
        points = curves.series.get(kl, [])
        values, begun = [value for _, value in points], curves.values(entropy)[:5]
        why = _beyond(values, sum(begun) / len(begun)) if begun else _at_a_growing_pace(values)
        reward = curves.values("reward")
        pays = rise(last(reward, 1 / 3)).rises or (grown(reward) and not rise(last(values, 1 / 3)).rises)
        if why and not pays:
            yield KL_EXPLODES.finding(
                severity="fault",
                step=points[-1][0],
                where="KL to the reference",
                says=f"{why}; the reward does not rise with it.",
                sure=0.9,
                evidence={"kl": values[-1], "first": values[0], "entropy_at_first": begun[0] if begun else None},
            )


def _beyond(values: Sequence[float], entropy: float) -> str:
    """What is said of a KL that has passed the entropy of where it began, and rises; nothing of another."""
    late = last(values, 1 / 3)
    now = level([math.log(value) for value in late if value > 0])  # what grows by factors has a level in logarithms
    if not now.low > math.log(max(entropy, 1e-9)):
        return ""
    return (
        f"KL is at {math.exp(now.middle):.3g} nats in the last {len(late)} values, beyond the {entropy:.3g} nats "
        "of entropy that the policy began with, all that being sure of its own words would cost"
    )


def _at_a_growing_pace(values: Sequence[float]) -> str:
    half = len(values) // 2
    if half < 20 or min(values) <= 0:
        return ""
    early, late = ([math.log(value) for value in part] for part in (values[:half], values[half:]))
    before, now = rise(early), rise(late)
    if now is NOTHING or now.low < math.log(2) or now.middle < KL_EXPLODES["pace"] * before.middle:
        return ""
    return (
        f"KL grows {math.exp(now.middle):.3g}-fold in the last {half} values, to {values[-1]:.3g}, after "
        f"{math.exp(before.middle):.3g}-fold in the {half} before: it does not level off"
    )
