"""Padding beside a text: whether it, or what a mask hides, moves what comes out for the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step
from limpid.doctor.rules.leaks import NEEDS, ROUNDING
from limpid.doctor.runs import RUN, Runs

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.calls import Call
    from limpid.doctor.exam import Exam

FAMILY = "padding_counts"

PADDING_COUNTS = Rule(
    "padding-counts",
    FAMILY,
    detects="A row whose result depends on how much padding stands beside it.",
    equation=r"\text{logits}(x, \text{pad}, \text{pad}) = \text{logits}(x)",
    source="definition; exact perturbation",
    threshold=f"{ROUNDING}, and {{share:.1%}} of the largest logit. A notice where positions are counted from the "
    "padding on, and where the model takes no mask and the change is less than {spread:g} standard deviations of what "
    "texts differ by",
    thresholds={
        "share": Threshold(1e-3, "sums of more terms round otherwise, by less than a hundredth of this"),
        "spread": Threshold(0.5, "less than what tells two texts apart"),
    },
    cost="two forward passes of a few rows before the first step",
    needs=(*NEEDS, Probe.MODULES),
    cause="padding is attended to, pooled, or read as if it were the last token",
    fix="give the mask to all that mixes positions, and read the last token that it shows",
    refuted_by="the same logits without the padding",
    again=True,
)

AT_THE_EDGE = "convolutions or pools whose edge sees a little of the padding"
AS_ANY_TOKEN = "padding that is read as any other token, by a mean, a convolution or a state that goes on"
PADDED_ROWS = 4
"""Rows that are looked at with their padding and without."""


@before_first_step(PADDING_COUNTS)
def less_padding(exam: Exam) -> Iterator[Finding]:
    """A few rows as they are given, and without the padding that all of them have."""
    import torch

    call = exam.usual_call
    if exam.probe is None or call is None or call.ids is None:
        return
    ids = call.ids.cpu()
    runs = Runs(ids)
    token, left = runs.commonest(), sum(runs.before) > sum(runs.after)
    lengths, edge = (runs.before, 0) if left else (runs.after, -1)
    rows = [row for row, run in enumerate(lengths) if RUN <= run < ids.shape[1] and int(ids[row, edge]) == token]
    if token is None or not rows or not runs.is_padding(token):
        return
    rows = sorted(rows, key=lambda row: -lengths[row])[:PADDED_ROWS]
    cut, length = min(lengths[row] for row in rows), ids.shape[1]
    chosen = call.without_loss().rows(torch.tensor(rows, device=call.ids.device))
    with_padding = exam.logits(chosen)
    if with_padding is None:
        return
    if (shown := _hidden_is_shown(exam, chosen, with_padding)) is not None:
        yield shown
        return
    without = exam.logits(chosen.rows(slice(None), length - cut, cut if left else 0))
    if without is None:
        return
    if with_padding.ndim == 3 and with_padding.shape[1] == length:
        with_padding = with_padding[:, cut:] if left else with_padding[:, : length - cut]
        text = ~runs.at_edges()[rows][:, cut:] if left else ~runs.at_edges()[rows][:, : length - cut]
        with_padding, without = with_padding[text], without[text]
    if with_padding.shape != without.shape or with_padding.ndim != 2 or not torch.isfinite(without).all():
        return
    moved = float((with_padding - without).abs().max())
    if moved > max(exam.rounding, PADDING_COUNTS["share"] * float(without.abs().max())):
        spread = float(without.std(0).mean()) if len(without) > 1 else 0.0
        yield _counted(exam, call, rows[0], cut, moved, spread, left, token)


def _hidden_is_shown(exam: Exam, call: Call, plain: Tensor) -> Finding | None:
    """Other tokens where the mask hides what is there; a model that knows its padding by its id may look for it."""
    mask, ids = call.mask, call.ids
    if mask is None or ids is None or mask.shape != ids.shape or bool(mask.bool().all()) or not bool(mask.any()):
        return None
    if exam.info.declared("pad_token_id") is not None and plain.ndim == 2:
        return None
    hidden = ~mask.bool()
    again = exam.logits(call.with_ids(ids.where(~hidden, exam.other_ids(ids.flip(1)).clamp(min=1))))
    if again is None or again.shape != plain.shape:
        return None
    moved = (plain - again).abs().amax(-1)
    moved = moved[~hidden] if moved.shape == hidden.shape else moved
    if float(moved.max()) <= max(exam.rounding, PADDING_COUNTS["share"] * float(plain.abs().max())):
        return None
    padding = "attention_mask" in call.tensors or not bool((hidden.cpu() & ~Runs(ids.cpu()).at_edges()).any())
    return PADDING_COUNTS.finding(
        severity="notice" if exam.info.has_experts else "fault",
        where="mask",
        says=f"other tokens where the mask is 0, at {int(hidden.sum())} positions, move what comes out for the "
        f"text by up to {float(moved.max()):.2g}: the mask is not used, or is read the other way round.",
        cause="1 means a token to transformers, and padding to key_padding_mask of torch's attention",
        fix="~mask.bool() where True hides, and the mask to all that mixes positions",
        meant=None if padding else "a mask of what is scored or predicted, not of what is seen",
        evidence={"moved": float(moved.max()), "rounding": exam.rounding},
    )


def _counted(
    exam: Exam, call: Call, row: int, cut: int, moved: float, spread: float, left: bool, token: int
) -> Finding:
    from limpid.doctor.calls import takes_mask

    masked = call.mask is not None and not bool(call.mask.bool().all())
    from_padding = left and call.positions is None and any(map(exam.info.of_positions, exam.info.parameters))
    small = moved < PADDING_COUNTS["spread"] * spread
    little = not takes_mask(exam.info.called) and small
    declared = takes_mask(exam.info.called) and exam.info.declared("pad_token_id") == token
    told = "though its mask hides it" if masked else "and no mask hides it"
    return PADDING_COUNTS.finding(
        severity="notice" if from_padding or little or exam.info.has_experts else "fault" if masked else "warning",
        where=f"row {row}",
        says=f"{cut} positions of padding at the {'beginning' if left else 'end'} of row {row} and others move what "
        f"comes out for their text by up to {moved:.2g} (texts differ by {spread:.2g}), {told}.",
        cause="positions are counted from the padding on" if from_padding else "",
        fix="position_ids that begin at the text" if from_padding else "",
        meant=AT_THE_EDGE if masked and small else None if masked or declared else AS_ANY_TOKEN,
        evidence={"moved": moved, "padding": cut, "spread": spread, "rounding": exam.rounding},
    )
