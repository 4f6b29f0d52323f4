"""The gradient of each row's output against that row's own error."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "row_errors"
NEEDS = (Probe.LOSS_GRADIENT, Probe.BATCH)
COST = "the gradient of up to 65,536 outputs, in the first steps and every 50th"
ROWS = 256
"""Rows that are compared with each other's targets, at most."""

ERRORS_NOT_FELT = Rule(
    "errors-not-felt",
    FAMILY,
    detects="A regression whose gradient does not know the rows' own targets: the same for all, or for all outputs "
    "alike.",
    equation=r"\partial L / \partial f_i = a f_i + b \text{ for all } i, \text{ though } f_i - y_i \text{ differ}",
    source="definition: of a mean of squares ∂L/∂f = 2 (f - y) / n",
    threshold="exact: of {rows:g} rows or more a straight line in the outputs explains their gradients to "
    "{rounding:g}, where errors have both signs and outputs explain no more than {known:.0%} of the targets, at "
    "{steps:g} read steps in a row",
    thresholds={
        "rows": Threshold(8, "a line through few points fits by chance"),
        "rounding": Threshold(1e-5, "a hundred roundings of float32"),
        "known": Threshold(0.98, "once outputs are the targets, both tell the same"),
        "steps": Threshold(2, "one batch may be odd"),
    },
    cost=COST,
    meant="labels of whole bags, moments that are matched, or a critic: no row's target is asked for",
    needs=NEEDS,
    cause="the mean is taken before the square, over errors or over targets: errors of single rows cancel",
    fix="square (or take the absolute value of) each row's error first: ((f - y) ** 2).mean()",
    refuted_by="a gradient that differs between two rows of one output and two targets",
    explains=("loss-plateau", "nothing-learned"),
)

ERRORS_OF_OTHER_ROWS = Rule(
    "errors-of-other-rows",
    FAMILY,
    detects="Rows that are compared with another row's target: outputs and targets stand in different order.",
    equation=r"\partial L / \partial f_i \propto f_i - y_{\pi(i)},\; \pi(i) = i + k \text{ or } n - i",
    source="definition: of a mean of squares ∂L/∂f = 2 (f - y) / n",
    threshold="exact: of {rows:g} rows or more outputs and targets in another order explain the gradients to "
    "{rounding:g}, and in their own leave over more than {left:.0%}, at {steps:g} read steps in a row",
    thresholds={
        "rows": Threshold(8, "a line through few points fits by chance"),
        "rounding": Threshold(1e-4, "a thousand roundings of float32"),
        "left": Threshold(0.05, "what is less may be a loss of another form"),
        "steps": Threshold(2, "one batch may be odd"),
    },
    cost=COST,
    needs=NEEDS,
    cause="outputs or targets were rolled, flipped or shifted by a row before they were compared",
    fix="compare each row's output with its own target; flip or roll both or neither",
    refuted_by="a gradient that is the row's own error",
    explains=("loss-plateau", "nothing-learned"),
)

OUTPUTS_TOO_COARSE = Rule(
    "outputs-too-coarse",
    FAMILY,
    detects="Outputs in a half-precision format whose spacing, where the targets lie, is as large as the targets' "
    "spread.",
    equation=r"2^{\lfloor \log_2 |y| \rfloor}\, \epsilon > \tfrac14\, \mathrm{std}(y),\; \epsilon = 2^{-7} "
    r"\text{ in bfloat16}, 2^{-10} \text{ in float16}",
    source="IEEE 754-2019; Kalamkar et al. 2019, arXiv:1905.12322",
    threshold="exact: all of {rows:g} outputs or more are numbers of the format, whose spacing at the targets' median "
    "is more than {spacing:g} of their deviation",
    thresholds={
        "rows": Threshold(8, "that eight numbers of float32 are all numbers of bfloat16 has a chance of 2^-128"),
        "spacing": Threshold(0.25, "rounding then adds half a percent to the variance, and more from there on"),
    },
    cost=COST,
    meant="a rough forecast in half precision, for which that rounding is small enough",
    needs=NEEDS,
    cause="the last layer runs in autocast, or its output was cast: numbers around 300 are 2 apart in bfloat16",
    fix="the last layer in float32 (autocast(enabled=False), x.float()), or targets less their mean",
    refuted_by="outputs between two numbers of the format",
    explains=("loss-plateau", "column-not-read"),
)


@on_step(ERRORS_NOT_FELT, ERRORS_OF_OTHER_ROWS, asks="row_gradients")
def whose_error(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Gradients as a combination of outputs and targets: in their own order, in none, in another."""
    from limpid.doctor.data_sheet import answers, rows_in_order

    found = answers(record) if record.row_gradients else None
    if found is None or len(found[0]) < ERRORS_NOT_FELT["rows"] or not bool(found[1].any()):
        return
    outputs, gradient, target = (one[:ROWS] for one in found)
    size = float(gradient.norm())
    error = outputs - target
    slope = _beside(gradient, outputs)
    told = _beside(target, outputs)
    both = 0.1 < float((error > 0).double().mean()) < 0.9
    spread = float((target - target.mean(0)).norm())
    unfelt = both and spread > 0 and float(told.norm()) ** 2 > (1 - ERRORS_NOT_FELT["known"]) * spread**2
    unfelt = unfelt and float(slope.norm()) <= ERRORS_NOT_FELT["rounding"] * size
    if history.in_a_row(ERRORS_NOT_FELT.slug, unfelt) == ERRORS_NOT_FELT["steps"]:
        yield _not_felt(record, gradient, error)
    own = _left(slope, told) / size
    other = None
    if (
        not unfelt
        and len(outputs) >= ERRORS_OF_OTHER_ROWS["rows"]
        and own > ERRORS_OF_OTHER_ROWS["left"]
        and rows_in_order(record)
    ):
        other = _order(slope, outputs, target, ERRORS_OF_OTHER_ROWS["rounding"] * size)
    if history.in_a_row(ERRORS_OF_OTHER_ROWS.slug, other is not None) == ERRORS_OF_OTHER_ROWS["steps"]:
        yield ERRORS_OF_OTHER_ROWS.finding(
            severity="fault",
            step=record.number,
            where="loss",
            says=f"the gradient of each row's output is, to rounding, the error against the target of {other}, not "
            f"against its own (which leaves over {own:.0%} of it, over {len(outputs)} rows): outputs and targets are "
            "in different order.",
            evidence={"order": other, "left_by_own": own, "rows": len(outputs)},
        )


def _not_felt(record: StepRecord, gradient: Tensor, error: Tensor) -> Finding:
    same = float((gradient - gradient.mean(0)).norm()) <= ERRORS_NOT_FELT["rounding"] * float(gradient.norm())
    what = "is the same for every row" if same else "is a straight line in the outputs, whatever the targets"
    return ERRORS_NOT_FELT.finding(
        severity="fault",
        step=record.number,
        where="loss",
        says=f"the gradient of the outputs {what}, though errors of the {len(error)} rows go from "
        f"{float(error.min()):.3g} to {float(error.max()):.3g}: the loss sees a mean over rows alone, and errors of "
        "single rows cancel.",
        cause="" if same else "the targets are averaged over rows before they are compared, or are not those of the "
        "batch",
        sure=0.95 if same else 0.85,
        evidence={"rows": len(error), "same_for_every_row": same},
    )  # fmt: skip


def _beside(values: Tensor, outputs: Tensor) -> Tensor:
    """What a straight line in the outputs leaves of values, columns about their means, (row, number)."""
    x, v = outputs - outputs.mean(0), values - values.mean(0)
    length = float((x * x).sum())
    return v - x * (float((x * v).sum()) / length) if length > 0 else v


def _left(slope: Tensor, told: Tensor) -> float:
    """What a multiple of `told` leaves over of `slope`, its length."""
    length = float((told * told).sum())
    return float((slope - told * (float((slope * told).sum()) / length)).norm()) if length > 0 else float(slope.norm())


def _order(slope: Tensor, outputs: Tensor, target: Tensor, near: float) -> str | None:
    """The order of targets that explains the gradients: another row's, or all backwards."""
    for k in range(1, len(target)):
        if _left(slope, _beside(target.roll(k, 0), outputs)) <= near:
            k = k if k <= len(target) // 2 else k - len(target)
            return f"the row {abs(k)} {'before' if k > 0 else 'after'} it"
    return "the row as far from the other end" if _left(slope, _beside(target.flip(0), outputs)) <= near else None


@on_step(OUTPUTS_TOO_COARSE)
def between_two_numbers(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    import torch

    from limpid.doctor.data_sheet import answers

    rule = OUTPUTS_TOO_COARSE
    found = answers(record) if record.row_gradients else None
    pair = record.difference if found is None else (found[0], found[2])
    if pair is None or pair[0].numel() < rule["rows"] or pair[0].numel() != pair[1].numel():
        return
    outputs, target = pair[0].detach().float().flatten(), pair[1].detach().float().flatten()
    middle, spread = float(target.abs().median()), float(target.std())
    for kind in (torch.bfloat16, torch.float16):
        if not bool((outputs.to(kind).float() == outputs).all()) or len(outputs.unique()) < 2 or middle == 0:
            continue
        spacing = 2.0 ** math.floor(math.log2(middle)) * torch.finfo(kind).eps
        name = str(kind).removeprefix("torch.")
        if spread > 0 and spacing > rule["spacing"] * spread and bool((target.to(kind).float() != target).any()):
            yield rule.finding(
                severity="warning",
                step=record.number,
                where="outputs",
                says=f"the outputs are numbers of {name}, which lie {spacing:g} apart where the targets are (around "
                f"{middle:.4g}), and the targets' deviation is {spread:.3g}: rounding alone is "
                f"{spacing / math.sqrt(12) / spread:.0%} of it, and cannot be learned away.",
                meant=None if spacing > spread else "",
                sure=0.9,
                evidence={"format": name, "spacing": spacing, "deviation": spread},
            )
        return
