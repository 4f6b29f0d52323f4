"""Pairs of answers as the loop learns them: which side its gradient raises, and whether their reference stays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step
from limpid.doctor.rules.preference import REFERENCE_MOVES

if TYPE_CHECKING:
    import numpy as np

    from limpid.doctor.calls import Call
    from limpid.doctor.history import History
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.micro_batches import Micro
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "pairs"
LN_2 = math.log(2)
REFERENCES = (
    "reference_chosen", "reference_rejected", "reference", "ref_chosen_logps", "ref_rejected_logps",
    "reference_chosen_logps", "reference_rejected_logps", "ref_logps", "reference_logps",
)  # fmt: skip
"""What batches call the log-probability of an answer under the reference: limpid, TRL, hand-written loops."""

CHOSEN_LOWERED = Rule(
    "chosen-lowered",
    FAMILY,
    detects="The gradient makes chosen answers less likely and rejected ones more: a sign, or two sides exchanged.",
    equation=r"\partial L / \partial z_t = w (p - e_{y_t}),\; w < 0 \;\text{at}\; y \in y_w,\; w > 0 \;\text{at}\; y "
    r"\in y_l",
    source="Rafailov et al. 2023, section 4, arXiv:2305.18290",
    threshold="exact, by the gradient of the logits: rows that the batch calls chosen all have the wrong sign (the "
    "next "
    "token has the negative entry in fewer than {lowered:.0%} of their labels), and rejected ones in more than "
    "{raised:.0%}",
    thresholds={
        "lowered": Threshold(0.1, "lowered, the most negative entry is never that of the answer"),
        "raised": Threshold(0.9, "raised, it always is; some labels may have no gradient"),
    },
    cost="the gradient of the logits, in the first steps and every 50th",
    needs=(Probe.LOSS_GRADIENT, Probe.BATCH),
    cause="chosen and rejected are exchanged between batch and loss, or the margin has the wrong sign",
    fix="-log sigmoid(β (log-ratio of chosen - log-ratio of rejected)); print a pair as it goes into the loss",
    refuted_by="a negative gradient at the tokens of chosen answers",
    explains=("preference-inverted", "gradient-ascent", "labels-misaligned", "targets-unrelated", "loss-diverges"),
)

REFERENCE_DRIFTS = Rule(
    "reference-drifts",
    FAMILY,
    detects="The reference gives other log-probabilities to the same answers than before: it is trained, or drops out.",
    equation=r"\ln \pi_0^{(t)}(y) \neq \ln \pi_0^{(s)}(y)",
    source="Rafailov et al. 2023, section 4, arXiv:2305.18290: π_ref is fixed",
    threshold="of answers that come back, {rows:g} or more, half differ by more than {roundings:g} roundings of the "
    "coarsest format of the model, relative, and more than as many nats times a rounding",
    thresholds={
        "rows": Threshold(8, "that half of eight differ by chance is out of the question; fewer may be one odd batch"),
        "roundings": Threshold(32, "two ways to the same logits, as everywhere here"),
    },
    cost="a number remembered per answer",
    meant="a reference that is renewed, as of iterated preferences or an average of the policy",
    needs=(Probe.BATCH,),
    cause="the reference shares weights with the policy, is updated, or is in training mode with dropout",
    fix="reference = copy.deepcopy(policy).eval().requires_grad_(False), or log-probabilities stored before the "
    "first step",
    refuted_by="equal log-probabilities of an answer in two epochs",
    explains=("preference-inverted",),
)

SIDES_EQUAL = Rule(
    "pair-sides-equal",
    FAMILY,
    detects="Pairs whose chosen and rejected answers are the same: nothing is preferred.",
    equation=r"y_w = y_l",
    source="Rafailov et al. 2023, eq. 7, arXiv:2305.18290: the gradient is that of ln π(y_w) - ln π(y_l)",
    threshold="exact: chosen and rejected tokens of every pair are equal, in {steps:g} batches in a row and {pairs:g} "
    "pairs or more; also where a batch holds all chosen rows and then all rejected ones",
    thresholds={
        "steps": Threshold(3, "one batch of ties may be"),
        "pairs": Threshold(6, "of real preferences not one is a tie"),
    },
    cost="one comparison of two arrays of integers",
    needs=(Probe.BATCH,),
    cause="both columns are read from one, or one list is filled twice",
    fix="print one pair: chosen and rejected should differ",
    refuted_by="one pair whose answers differ",
    explains=(
        "reference-not-fixed", "loss-constant", "epsilon-dominates", "rows-duplicated", "loss-plateau",
        "loss-never-falls",
    ),
)  # fmt: skip

FIRST = 3
"""Steps at which no margin is beyond its goal yet."""
MOST = 4096
"""Answers whose reference is remembered."""


@on_step(CHOSEN_LOWERED)
def chosen_lowered(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    sides: dict[str, list[float]] = {"chosen": [], "rejected": []}
    for micro in record.micros:
        for side, found in sides.items():
            rows = _rows_of(micro, side)
            for index, gradient in record.loss_gradients.items():
                found += _raised(rows, record.calls[index], gradient)
    chosen, rejected = sides["chosen"], sides["rejected"]
    rule = CHOSEN_LOWERED
    if chosen and rejected and max(chosen) < rule["lowered"] and min(rejected) > rule["raised"]:
        yield rule.finding(
            severity="fault",
            step=record.number,
            where="loss",
            says=f"the gradient lowers the probability of all {len(chosen)} chosen answers of the batch and raises "
            f"that of all {len(rejected)} rejected ones.",
            meant=None if record.number <= FIRST else "a margin beyond its goal, as IPO and smoothed labels pull back",
            evidence={"chosen": len(chosen), "rejected": len(rejected)},
        )


def _rows_of(micro: Micro, side: str) -> list[list[int]]:
    """The rows that a batch calls chosen, or rejected, without what pads them at their end."""
    given = micro.array(f"{side}_input_ids", side, f"{side}_ids", f"{side}_tokens", f"{side}s")
    mask = micro.array(f"{side}_attention_mask", f"{side}_mask")
    if given is None or given.ndim != 2:
        return []
    if mask is not None and mask.shape == given.shape:
        return [row[there > 0].tolist() for row, there in zip(given, mask, strict=True)]
    return [_unpadded(row) for row in given]


def _unpadded(row: np.ndarray) -> list[int]:
    ends = (row != row[-1]).nonzero()[0]
    return row[: int(ends[-1]) + 2 if len(ends) else len(row)].tolist()


def _raised(rows: list[list[int]], call: Call, gradient: LossGradient) -> Iterator[float]:
    """Of each of these rows that a forward pass had: the share of its labels at which the answer is raised."""
    if gradient.ids is None or not gradient.complete:
        return
    ids = gradient.ids
    taught, labelled = gradient.taught.view(ids.shape)[:, :-1], gradient.labelled.view(ids.shape)[:, :-1]
    up = (taught == ids[:, 1:]) ^ gradient.inverted
    for row, own in enumerate(ids.tolist()):
        there = any(len(one) > 1 and _holds(own, one) for one in rows)
        if there and bool(labelled[row].any()):
            yield float(up[row][labelled[row]].double().mean())


def _holds(row: list[int], wanted: list[int]) -> bool:
    """Whether a row is the wanted one, with padding before or after it."""
    begin = next((i for i in range(len(row) - len(wanted) + 1) if row[i : i + len(wanted)] == wanted), None)
    return begin is not None and len({*row[:begin]}) <= 1 and len({*row[begin + len(wanted) :]}) <= 1


@on_step(SIDES_EQUAL)
def both_the_same(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule = SIDES_EQUAL
    pairs = [one for micro in record.micros for one in _pairs(micro)]
    same = bool(pairs) and all(one == other for one, other in pairs)
    history.equal_pairs = history.equal_pairs + len(pairs) if same else 0
    if history.in_a_row(rule.slug, same) >= rule["steps"] and history.equal_pairs >= rule["pairs"]:
        yield rule.finding(
            severity="fault",
            step=record.number,
            where="batch",
            says=f"chosen and rejected answers of all {history.equal_pairs} pairs of the last batches are the same "
            "tokens: nothing is preferred, and the margin is 0 whatever is learned.",
            evidence={"pairs": history.equal_pairs},
        )


def _pairs(micro: Micro) -> Iterator[tuple[list[int], list[int]]]:
    """Chosen and rejected row of each pair: by name, or as the two halves of rows that are answers to prompts."""
    chosen, rejected = _rows_of(micro, "chosen"), _rows_of(micro, "rejected")
    ids, mask = micro.array("input_ids"), micro.array("completion_mask")
    halves = ids is not None and mask is not None and mask.shape == ids.shape and len(ids) % 2 == 0
    if not chosen and halves and ids is not None and mask is not None and not micro.is_rewarded:
        rows = [
            row[: int(there.nonzero()[0][-1]) + 1].tolist()
            for row, there in zip(ids, mask > 0, strict=True)
            if there.any()
        ]
        if len(rows) == len(ids) and _prompts_agree(ids, mask > 0):
            chosen, rejected = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    if len(chosen) == len(rejected):
        yield from zip(chosen, rejected, strict=True)


def _prompts_agree(ids: np.ndarray, answered: np.ndarray) -> bool:
    """Whether the second half of the rows has the prompts of the first, in its order: what stands before answers."""
    half = len(ids) // 2
    starts = answered.argmax(1)
    one, other = starts[:half], starts[half:]
    return bool((one == other).all()) and all(
        (ids[i, :begin] == ids[half + i, :begin]).all() and begin > 0 for i, begin in enumerate(one)
    )


@on_step(REFERENCE_MOVES)
def stays_at_ln_2(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A loss of pairs that is exactly ln 2, step by step, while updates are made: both models are one."""
    steps = int(REFERENCE_MOVES["steps"]) + 1
    losses, rates = history.losses_and(record, steps)[-steps:], history.rates[-steps:]
    exact = len(losses) == steps and max(abs(loss - LN_2) for loss in losses) < 2.0**-20
    moves = record.norm and min(rates, default=0.0) > 0
    of_labels = "binary_cross_entropy_with_logits" in history.losses_called  # ln 2 while its weights are 0
    if exact and moves and not of_labels and history.times("ln 2") == 1:
        yield REFERENCE_MOVES.finding(
            severity="fault",
            step=record.number,
            where="reference",
            says=f"the loss is ln 2 to six digits in {steps} steps in a row, with a gradient of {record.norm:.2g}: "
            "policy and reference are the same model.",
            sure=0.95,
            evidence={"loss": losses[-1], "steps": steps},
        )


@on_step(REFERENCE_MOVES)
def optimizer_holds_it(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A second model of the same shape among what the optimizer trains, where answers are learned."""
    rewarded = any(micro.is_rewarded for micro in record.micros)
    if record.number > 3 or not (rewarded or any(_rows_of(micro, "chosen") for micro in record.micros)):
        return
    own = [p for p in watched.info.parameters.values() if p.requires_grad]
    held = {id(p) for p in watched.held}
    others = [p for p in watched.held if id(p) not in watched.info.names]
    shapes = [sorted(tuple(p.shape) for p in some) for some in (own, others)]
    if own and shapes[0] == shapes[1] and all(id(p) in held for p in own):
        yield REFERENCE_MOVES.finding(
            severity="fault",
            step=record.number,
            where="optimizer",
            says=f"the optimizer holds a second model of the same {len(own)} tensors beside the one that is trained: a "
            "reference that it changes, too, is none.",
            meant="two policies that learn together" if rewarded else None,
            sure=0.8,
            evidence={"tensors": len(others)},
        )


@on_step(REFERENCE_DRIFTS)
def drifts(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, kept = REFERENCE_DRIFTS, history.references
    for micro in record.micros:
        for name in REFERENCES:
            for key, value in _scores(micro, name):
                if key in kept:
                    bound = rule["roundings"] * _unit(watched, record) * max(1.0, abs(value))
                    history.returned.append(abs(value - kept[key]) / bound)
                elif len(kept) < MOST:
                    kept[key] = value
    off = list(history.returned)
    if len(off) >= rule["rows"] and median(off) > 1:
        yield rule.finding(
            severity="fault",
            step=record.number,
            where="reference",
            says=f"of {len(off)} answers that came back the reference gives most another log-probability than before, "
            f"{median(off):.3g} times further apart than {rule['roundings']:g} roundings.",
            evidence={"answers": len(off), "median_over_bound": median(off)},
        )


def _scores(micro: Micro, name: str) -> Iterator[tuple[object, float]]:
    """Each answer of a batch with its log-probability under the reference."""
    values = micro.array(name)
    if values is None or values.ndim != 1:
        return
    side = next((side for side in ("chosen", "rejected") if side in name), "")
    rows: list[object] = list(micro.rows)
    if side and len(rows) == 2 * len(values):
        rows = rows[side == "rejected" :: 2]
    if len(rows) != len(values):
        rows = [tuple(row) for row in _rows_of(micro, side)] if side else []
    if len(rows) == len(values):
        yield from (((name, row), float(value)) for row, value in zip(rows, values, strict=True))


def _unit(watched: Watched, record: StepRecord) -> float:
    """The round-off of the coarsest format that the model computes in."""
    import torch

    formats = {p.dtype for p in watched.info.parameters.values() if p.is_floating_point()}
    formats |= {kind for kind in record.autocast if kind is not None}
    return max((torch.finfo(kind).eps / 2 for kind in formats), default=2.0**-24)
