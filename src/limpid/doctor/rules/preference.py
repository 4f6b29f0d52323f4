"""Preferences: which side is raised, what it is measured against, and who pays for the margin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, in_curves
from limpid.doctor.trends import last, level, together

if TYPE_CHECKING:
    from limpid.doctor.logs.table import Curves

FAMILY = "preference"

INVERTED = Rule(
    "preference-inverted",
    FAMILY,
    detects="Training prefers the rejected answers: a sign, two sides that changed places, or labels the wrong way "
    "round.",
    equation=r"\Pr(r(y_w) > r(y_l)) < 1/2 \;\text{after training on}\; y_w \succ y_l",
    source="Rafailov et al. 2023, eq. 7, arXiv:2305.18290",
    threshold="over the last half of the steps with a margin fewer than {half:.0%} of the chosen answers are ahead; or "
    "the loss rises and falls with the margin from step to step, where that is below {near:g}; or more than half are "
    "ahead in training and fewer than half in {evaluations:g} evaluations or more; each for sure, by Student intervals "
    "and Fisher's of the correlation",
    thresholds={
        "half": Threshold(0.5, "what a coin does"),
        "near": Threshold(0.5, "IPO's goal for β times the margin: below it every loss of preferences falls in it"),
        "evaluations": Threshold(4, "each says the same: one chance in 16 for a coin, and they are sums over pairs"),
    },
    cost="none: what is logged",
    needs=(Probe.LOG,),
    cause="the loss has the wrong sign, or chosen and rejected changed places between the data and the loss",
    fix="-log sigmoid(β (log-ratio of chosen - log-ratio of rejected)); print a pair as it goes into the loss",
    refuted_by="margins that rise in training and on held-out pairs",
    explains=("likelihood-displaced", "loss-diverges"),
)

DISPLACED = Rule(
    "likelihood-displaced",
    FAMILY,
    detects="The margin grows only because the rejected answers fall faster: the chosen ones become unlikely, too.",
    equation=r"\Delta \ln \pi(y_w) < -(\Delta \ln \pi(y_w) - \Delta \ln \pi(y_l)) < 0",
    source="Razin et al. 2024, section 3, arXiv:2410.08847; Pal et al. 2024, arXiv:2402.13228",
    threshold="over the last third, since the first step, chosen answers have lost more log-probability than the "
    "margin has gained, and more than {least:.2g} of reward, for sure (Student intervals of block means)",
    thresholds={"least": Threshold(0.693, "ln 2, the unit of rewards: odds of 2 to 1")},
    cost="none: what is logged",
    meant="DPO as it is, on answers much alike, where their order alone counts",
    needs=(Probe.LOG,),
    cause="chosen and rejected answers are much alike, so that pushing one down takes the other along; or too long, at "
    "too high a rate",
    fix="fewer steps or a lower rate, an NLL term on chosen answers (rpo_alpha), a larger β, or pairs that differ more",
    refuted_by="log-probabilities of chosen answers that fall by less than the margin grows",
)

REFERENCE_MOVES = Rule(
    "reference-not-fixed",
    FAMILY,
    detects="A reference that is the policy itself, or is trained along: the distance to it stays 0.",
    equation=r"\ln \pi_\theta(y) - \ln \pi_0(y) = 0 \;\text{although}\; \theta \neq \theta_0",
    source="Rafailov et al. 2023, section 4, arXiv:2305.18290",
    threshold="rewards of chosen and rejected answers within {zero:.0e} of 0 at {steps:g} steps or more after an "
    "update at a rate above 0, and at none beyond it",
    thresholds={
        "zero": Threshold(1e-7, "β = 0.1 times one rounding of a log-probability of 16 nats: none is off by less"),
        "steps": Threshold(5, "one step may leave a few answers where they were, five do not"),
    },
    cost="none: what is logged",
    needs=(Probe.LOG,),
    cause="the reference is the same object as the policy (no copy), shares its tensors, or an adapter is not switched "
    "off for it",
    fix="reference = copy.deepcopy(policy).eval().requires_grad_(False) before training, or log-probabilities stored "
    "before the first step",
    refuted_by="rewards/chosen or rewards/rejected away from 0 after the first update",
    explains=(
        "preference-inverted",
        "loss-plateau",
        "loss-constant",
        "weights-never-change",
        "loss-never-falls",
        "reference-drifts",
    ),
)

REFERENCE_ELSEWHERE = Rule(
    "reference-is-another",
    FAMILY,
    detects="Before the first update the policy is already away from a reference that is said to be its start.",
    equation=r"\ln \pi_{\theta_0}(y) - \ln \pi_0(y) \neq 0",
    source="Rafailov et al. 2023, section 4, arXiv:2305.18290: at first the loss is ln 2",
    threshold="rewards of the first step further from 0 than {exact:.0e} in a run of limpid in float32, or than "
    "{other:g} in a half format, without a reference of its own and without dropout, a fault; further than {other:g} "
    "in another tool's, a notice: it may be meant",
    thresholds={
        "exact": Threshold(2.0**-15, "32 roundings of float32, 2^-24 each, of a log-probability of 16 nats"),
        "other": Threshold(0.1, "β = 0.1 times one nat: bfloat16 rounds the sum over an answer by less"),
    },
    cost="none: what is logged",
    needs=(Probe.LOG,),
    cause="the reference is of another checkpoint, has an adapter on, or scores other tokens or another template",
    fix="take the reference's log-probabilities with the weights that training starts from, dropout off",
    refuted_by="rewards of 0 and a loss of ln 2 at the first step",
)


@in_curves(INVERTED)
def inverted(curves: Curves) -> Iterator[Finding]:
    margins = dict(curves.series.get("margin", ()))
    if not margins:
        return
    known = curves.series.get("preferred") or curves.series.get("accuracy", [])
    shares = [share for step, share in known if margins.get(step, 1.0) != 0]  # at first all are equal, and none ahead
    ahead, evaluated = level(last(shares, 0.5)), [share for _, share in curves.series.get("eval_preferred", [])]
    losses, step, half = dict(curves.series.get("loss", ())), max(margins), INVERTED["half"]
    near = [(margins[at], losses[at]) for at in margins if at in losses and margins[at] < INVERTED["near"]]
    slope = together(near)
    if ahead.high < half or slope.rises:
        says = (
            f"the chosen answer is ahead in {ahead.middle:.0%} of the pairs"
            if ahead.high < half
            else f"the loss is higher where the margin of the chosen answers is (correlation {slope.middle:.2f} over "
            f"{len(near)} steps)"
        )
        yield INVERTED.finding(
            severity="fault",
            step=step,
            where="preferences",
            says=f"{says}: training prefers what was rejected.",
            evidence={"ahead": ahead.middle, "margin": margins[step], "correlation": slope.middle},
        )
    elif ahead.low > half and len(evaluated) >= INVERTED["evaluations"] and max(evaluated) < half:
        yield INVERTED.finding(
            severity="warning",
            step=step,
            where="held-out preferences",
            says=f"the chosen answer is ahead in {ahead.middle:.0%} of the pairs in training and in "
            f"{max(evaluated):.0%} at most of {len(evaluated)} evaluations: the two disagree on which side is which.",
            cause="chosen and rejected changed places in one of the two sets, or training learned pairs by heart",
            meant="held-out pairs of another kind",
            sure=0.7,
            evidence={"ahead": ahead.middle, "evaluated": evaluated[-1]},
        )


@in_curves(DISPLACED)
def displaced(curves: Curves) -> Iterator[Finding]:
    points = curves.series.get("chosen", [])
    rejected = dict(curves.series.get("rejected", ()))
    both = [(step, value, rejected[step]) for step, value in points if step in rejected]
    if not both:
        return
    _, chosen_first, rejected_first = both[0]
    late = last(both, 1 / 3)
    lost = [chosen - chosen_first for _, chosen, _ in late]
    gained = [lead - (other - rejected_first) for lead, (_, _, other) in zip(lost, late, strict=True)]
    fell, margin = level(lost), level(gained)
    if (
        margin.rises
        and fell.high < -DISPLACED["least"]
        and level([a + b for a, b in zip(lost, gained, strict=True)]).falls
    ):
        yield DISPLACED.finding(
            severity="warning",
            step=both[-1][0],
            where="chosen answers",
            says=f"since the first step the rewards (β times log-probability against the reference) of chosen answers "
            f"fell by {-fell.middle:.3g} and those of rejected ones by {margin.middle - fell.middle:.3g}: more was "
            f"lost than the margin of {margin.middle:.3g} that it made, and went to other answers.",
            sure=0.9,
            evidence={"chosen": fell.middle, "margin": margin.middle},
        )


@in_curves(REFERENCE_MOVES, REFERENCE_ELSEWHERE)
def reference(curves: Curves) -> Iterator[Finding]:
    rejected, rates = dict(curves.series.get("rejected", ())), dict(curves.series.get("learning_rate", ()))
    both = [(step, value, rejected.get(step, 0.0)) for step, value in curves.series.get("chosen", [])]
    begun = next((step for step, _, _ in both if rates.get(step, 1.0) > 0), None)
    after = [max(abs(a), abs(b)) for step, a, b in both if begun is not None and step > begun]
    rule = REFERENCE_MOVES
    if len(after) >= rule["steps"] and max(after) <= rule["zero"]:
        yield rule.finding(
            severity="fault",
            step=both[-1][0],
            where="reference",
            says=f"after {len(after)} steps with an update the policy is exactly where its reference is (rewards of 0, "
            f"{max(after):.0e} at most): the reference goes along.",
            evidence={"steps": len(after), "largest": max(after)},
        )
    if both and both[0][0] == 1:
        yield from _elsewhere(curves, *both[0][1:])


def _elsewhere(curves: Curves, chosen: float, rejected: float) -> Iterator[Finding]:
    rule, tuning = REFERENCE_ELSEWHERE, curves.tuning
    ours = tuning is not None and not tuning.is_narrow
    if tuning is not None and (not tuning.reference_is_start or tuning.dropout):
        return
    if max(abs(chosen), abs(rejected)) > (rule["exact"] if ours else rule["other"]):
        yield rule.finding(
            severity="notice" if tuning is None else "fault",
            step=1,
            where="reference",
            says=f"at the first step, before any update, rewards are {chosen:.3g} of chosen and {rejected:.3g} of "
            "rejected answers, not 0: the reference is not the model that training starts from.",
            sure=0.6 if tuning is None else 1.0,
            evidence={"chosen": chosen, "rejected": rejected},
        )
