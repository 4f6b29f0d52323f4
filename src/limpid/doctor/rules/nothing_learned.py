"""A loss that is no better than a guess which knows no input, though the weights have moved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step
from limpid.doctor.rules.loss import FORMULA_UNUSUAL

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.history import History
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "nothing_learned"

NOTHING_LEARNED = Rule(
    "nothing-learned",
    FAMILY,
    detects="A classifier, or a regression, that does no better than the frequencies or the mean of its targets.",
    equation=r"L_t \ge H(y) = -\sum_c f_c \ln f_c;\; 1 - L_t / \mathrm{Var}(y) \approx 0",
    source="Shannon 1948; definition of explained variance",
    threshold="after {steps:g} steps or more a median loss of the last 20 above {share:.0%} of the entropy of the "
    "labels, each weighed as its class is, of a cross-entropy of one class for each row, whose inputs no gradient "
    "made harder, with {rows:g} rows or more of each class; or at {looks:g} looks in a row less than {explained:.0%} "
    "of the targets' variance explained, not below -{off:.0%}, and predictions that hardly vary; where updates add "
    "up to {moved:.0%} of the weights or more; asked before {most:.0%} of the planned updates, or {late:g}, are made",
    thresholds={
        "steps": Threshold(60, "what learns at a usual rate has begun to by then"),
        "share": Threshold(0.99, "near chance a batch of 16 scatters by 4 %, the median of 20 by a hundredth"),
        "rows": Threshold(150, "fewer hardly tell one class from another"),
        "looks": Threshold(4, "forty steps"),
        "explained": Threshold(0.05, "what is less is noise of one batch"),
        "off": Threshold(0.25, "predictions half a deviation off the mean of the targets move towards it still"),
        "moved": Threshold(0.3, "weights that have hardly moved have learned nothing yet"),
        "late": Threshold(240, "four times as long, where nobody says how long the run is to be"),
        "most": Threshold(0.75, "of a run: what is learned at once has been by then"),
    },
    cost="none: losses, labels and updates are there",
    meant="a task that is learned at once and late, or a small rate",
    suffers=True,
    needs=(Probe.LOSS, Probe.BATCH, Probe.UPDATES, Probe.LOSS_INPUTS, Probe.LOSS_GRADIENT),
    cause="targets that have nothing to do with the inputs as they are given (shuffled apart, contradicting each "
    "other, of "
    "other rows or places, drawn anew), or inputs that the model cannot tell apart",
    fix="look at ten pairs of input and target as the model is given them; see whether it can learn these ten by heart",
    refuted_by="a loss below the entropy of the labels",
)


POSTERIOR_COLLAPSED = Rule(
    "posterior-collapsed",
    FAMILY,
    detects="A variational autoencoder whose latents say nothing of its inputs: all have the prior's mean and "
    "variance.",
    equation=r"\mathrm{KL}(q(z \mid x) \Vert p(z)) = \tfrac12 \textstyle\sum (\mu^2 + \sigma^2 - 1 - \ln \sigma^2) "
    r"\approx 0",
    source="Bowman et al. 2015, section 3.1, arXiv:1511.06349; Kingma & Welling 2013, appendix B, arXiv:1312.6114",
    threshold="below {nats:g} nats a dimension at {looks:g} looks in a row from step {steps:g} on, of a mean and a "
    "log-variance "
    "that the model returns after its reconstruction",
    thresholds={
        "nats": Threshold(0.005, "a latent of so little tells one bit in a hundred rows"),
        "looks": Threshold(4, "forty steps: it is no passing state"),
        "steps": Threshold(40, "a weight of the divergence that begins at 1 may press first"),
    },
    cost="one sum over the latents, on sampled steps",
    meant="a run whose latents have yet to wake, under a weight of the divergence that is to fall",
    needs=(Probe.LOSS,),
    cause="the divergence outweighs the reconstruction: one is summed over its dimensions, the other averaged",
    fix="sum both over their dimensions and average over rows; or let the divergence's weight rise from 0",
    refuted_by="means that differ between rows",
    explains=("loss-plateau",),
)


@on_step(POSTERIOR_COLLAPSED)
def says_nothing(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, nats = POSTERIOR_COLLAPSED, record.latents
    if nats is None or not record.sampled:
        return
    looks = history.in_a_row(rule.slug, nats < rule["nats"])
    if record.number >= rule["steps"] and looks >= rule["looks"]:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="latents",
            says=f"the latents diverge from the prior by {nats:.1e} nats a dimension: they carry no information on "
            f"the input, and "
            "what is written does not depend on what was read; the posterior has collapsed.",
            sure=0.8,
            evidence={"nats": nats},
        )


def _join(known: dict[int, float], weights: dict[int, float]) -> None:
    """Add what the classes of a batch weigh; only ratios count, so that a class which both have joins them."""
    shared = next((kind for kind in weights if kind in known), None)
    if known and shared is None:
        return
    factor = 1.0 if shared is None else known[shared] / max(weights[shared], 1e-30)
    known.update({kind: weight * factor for kind, weight in weights.items()})


@on_step(NOTHING_LEARNED)
def no_better_than_frequencies(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, counts = NOTHING_LEARNED, history.label_counts
    for labels in record.class_labels:
        counts.update(labels.tolist())
    for first in record.downhill[:1]:
        weights = _weights_of_classes(first)
        surprise = float((first.weight * first.surprise).sum() / first.weight.sum().clamp(min=1e-30))
        alone = record.loss is not None and abs(record.loss - surprise) < 0.05 * surprise
        one_each = first.ids is None and first.shape[1] == 1 and bool(first.labelled.all())  # a class for every row
        mean = first.misfit < 0.05 and 0.9 < record.sum_of_weights < 1.1
        as_given = not record.asides  # inputs that a gradient made harder are to stay hard
        history.teaches_classes = alone and one_each and mean and as_given and weights is not None
        _join(history.label_weights, weights or {})
    if record.number < rule["steps"] or record.number % 10 or not history.teaches_classes or len(counts) < 2:
        return
    if not history.label_weights.keys() >= counts.keys():
        return
    weighed = [n * history.label_weights[kind] for kind, n in counts.items()]  # what a guess is judged by, too
    total, losses = sum(weighed), history.losses_before(20)
    entropy = -sum(n / total * math.log(n / total) for n in weighed)
    if min(counts.values()) < rule["rows"] or not losses or median(losses) < rule["share"] * entropy:
        return
    if _moved(record, history) < rule["moved"]:
        return
    yield rule.finding(
        severity="warning",
        step=record.number,
        where="loss",
        says=f"after {record.number} updates the loss is {median(losses):.3f}, that of a guess which knows how "
        f"frequent each of "
        f"the {len(counts)} labels is and nothing of the inputs ({entropy:.3f}): nothing was learned, at chance.",
        meant=None if _is_late(watched, record) else "",
        sure=0.6,
        evidence={"loss": median(losses), "entropy": entropy, "labels": len(counts)},
    )


def _weights_of_classes(first: LossGradient) -> dict[int, float] | None:
    """What a row of each class of this batch weighs in its mean; None where rows of one class weigh differently."""
    taught, weight = first.taught[first.labelled], first.weight[first.labelled].double()
    found = {}
    for kind in taught.unique().tolist():
        own = weight[taught == kind]
        if float(own.std(correction=0)) > FORMULA_UNUSUAL["near"] * float(own.mean()):
            return None
        found[kind] = float(own.mean())
    return found


@on_step(NOTHING_LEARNED, asks="explained")
def no_better_than_the_mean(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, seen = NOTHING_LEARNED, record.explained
    if seen is None:
        return
    explained, spread, target = seen
    if not _is_given(record, target):  # what a loop computes itself, such as returns, it may not be able to follow yet
        return
    at_the_mean = explained > -rule["off"]  # whoever is not there yet is on the way
    flat = at_the_mean and explained < rule["explained"] and spread < rule["explained"]
    looks = history.in_a_row(rule.slug, flat)
    if record.number >= rule["steps"] and looks >= rule["looks"] and _moved(record, history) >= rule["moved"]:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="loss",
            says=f"after {record.number} updates predictions vary by {spread:.1%} of the targets' variance and explain "
            f"{max(explained, 0):.0%} of it: the model says the mean of the targets whatever it is given, nothing was "
            f"learned.",
            meant=None if _is_late(watched, record) else "",
            sure=0.6,
            evidence={"explained": explained, "spread": spread},
        )


def _is_given(record: StepRecord, target: Tensor) -> bool:
    """Whether the batch holds these targets."""
    import torch

    for micro in record.micros:
        held = micro.given.values() if isinstance(micro.given, Mapping) else micro.given
        for one in held if isinstance(held, tuple | list) or isinstance(micro.given, Mapping) else ():
            if isinstance(one, torch.Tensor) and one.shape == target.shape:
                numbers = record.host(one)
                if numbers is not None and torch.equal(numbers, target):
                    return True
    return False


def _is_late(watched: Watched, record: StepRecord) -> bool:
    """Whether most of the run has been made."""
    rule, planned = NOTHING_LEARNED, watched.planned
    return record.number >= (rule["late"] if planned is None else rule["most"] * planned)


def _moved(record: StepRecord, history: History) -> float:
    """What updates add up to, over the weights: the median of those seen, times their number."""
    ratios = [update.median_ratio() for _, update in history.updates]
    return median(ratios) * record.number if ratios else 0.0
