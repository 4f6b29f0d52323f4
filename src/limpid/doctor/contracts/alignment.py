"""Connectionist temporal classification: logarithms of probabilities, lengths, and the label that stands for nothing.

Source: the documentation of torch.nn.CTCLoss; Graves et al. 2006, section 3, doi:10.1145/1143844.1143891.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from limpid.doctor.contracts.contract import Breach, Given
from limpid.doctor.contracts.logarithms import OFF
from limpid.doctor.rules.arguments import OUTSIDE, UNREACHABLE
from limpid.doctor.rules.loss_arguments import PROBABILITIES_GIVEN

MOST = 0.5
"""Rows that are too short: single ones occur in honest data."""


def ctc(given: Given) -> Iterator[Breach]:
    """`log_probs` (time, row, class), `targets` (row, label) or one after the other, lengths of both."""
    logs, blank = given["log_probs"], given["blank"]
    if logs.ndim != 3 or not logs.numel():
        return
    off = float(logs.detach().float().logsumexp(-1).abs().mean())
    if off > OFF:
        yield Breach(
            rule=PROBABILITIES_GIVEN,
            where="ctc_loss: log_probs",
            says=f"ctc_loss asks for logarithms of probabilities over the last axis, and these do not add up to 1 "
            f"(|log Σ p| = {off:.2g} on average): the gradient it returns is not that of its value.",
            cause="logits, or softmax, where log_softmax is meant; or another axis",
            fix="log_softmax(logits, dim=-1)",
            evidence={"log_sum": off},
        )
    lengths, times = _numbers(given["target_lengths"]), _numbers(given["input_lengths"])
    rows = _rows(given["targets"].detach().cpu(), lengths)
    blanks = sum(int((row == blank).sum()) for row in rows)
    if blanks:
        yield Breach(
            rule=OUTSIDE,
            where="ctc_loss: targets",
            says=f"{blanks} of {sum(lengths)} labels are {blank}, which is the blank: it stands for no label, and no "
            "target may hold it.",
            cause="labels that begin at 0 beside blank=0, or padding that target_lengths count",
            fix="labels from 1 on, or blank=the number of labels; target_lengths without padding",
            evidence={"blanks": blanks, "labels": sum(lengths)},
        )
    short = sum(t < len(row) + int((row[1:] == row[:-1]).sum()) for row, t in zip(rows, times, strict=False))
    if rows and short > MOST * len(rows):
        yield Breach(
            rule=UNREACHABLE,
            where="ctc_loss: input_lengths",
            says=f"{short} of {len(rows)} rows have fewer steps of time than labels and repetitions: no alignment of "
            f"them exists, their loss is infinite{', and set to 0' if given['zero_infinity'] else ''}.",
            cause="a model that shortens time too much, or lengths of another tensor",
            fix="less downsampling; input_lengths in steps of log_probs",
            evidence={"rows": len(rows), "short": short},
        )


def _numbers(value: Tensor | list[int] | tuple[int, ...]) -> list[int]:
    return [int(n) for n in (value.detach().cpu().flatten() if isinstance(value, Tensor) else value)]


def _rows(targets: Tensor, lengths: list[int]) -> list[Tensor]:
    """The labels of each row, without what stands behind them."""
    if targets.ndim == 2:
        return [row[:n] for row, n in zip(targets, lengths, strict=False)]
    return list(torch.split(targets[: sum(lengths)], lengths)) if sum(lengths) <= len(targets) else []
