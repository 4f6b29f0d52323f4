"""Language modelling: the mean surprise, in nats, of each next token."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

NO_LABEL = -100
"""Target of a position that has no next token to learn; transformers' convention."""


def log_probabilities(logits: Float[Tensor, "batch position vocab"]) -> Float[Tensor, "batch position vocab"]:
    """log softmax, formed in at least float32 whatever the format of the logits, in nats."""
    return F.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def language_model(
    log_probabilities: Float[Tensor, "batch position vocab"], targets: Int[Tensor, "batch position"], labels: int
) -> Float[Tensor, ""]:
    """-1/labels Σ log p(target), nats per label.

    `labels` counts the labels of the whole step, so that micro-batches add up to the mean over all of them however
    unevenly labels fall. Source: Bengio et al. 2003, eq. 1, JMLR 3.
    """
    vocab = log_probabilities.shape[-1]
    total = F.nll_loss(log_probabilities.view(-1, vocab), targets.flatten(), ignore_index=NO_LABEL, reduction="sum")
    return total / labels


class Surprise(torch.autograd.Function):
    """`language_model(log_probabilities(logits), …)` in one pass over the logits, a few cache-sized rows at a time.

    Nothing of the size of the logits is formed but their gradient, in their own format; sums are in float32 at least.
    """

    ROWS = 128
    """Rows at a time: their room is made once and stays in the cache."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, labels: int) -> Tensor:
        rows, targets = logits.flatten(0, -2), targets.flatten()
        dtype = torch.promote_types(logits.dtype, torch.float32)
        labelled = targets != NO_LABEL
        target = targets.where(labelled, 0)[:, None]
        log_total = rows.new_empty((rows.shape[0], 1), dtype=dtype)
        room = rows.new_empty((Surprise.ROWS, rows.shape[1]), dtype=dtype)
        for part, total in zip(rows.split(Surprise.ROWS), log_total.split(Surprise.ROWS), strict=True):
            largest = part.amax(-1, keepdim=True).to(dtype)
            shifted = room[: len(part)].copy_(part).sub_(largest)
            total.copy_(shifted.exp_().sum(-1, keepdim=True).log_().add_(largest))
        ctx.save_for_backward(logits, target, labelled, log_total)
        ctx.labels = labels
        return (log_total - rows.gather(1, target).to(dtype))[labelled].sum() / labels

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_bar: Tensor) -> tuple[Tensor, None, None]:
        logits, target, labelled, log_total = ctx.saved_tensors
        logits_bar = torch.empty_like(logits)
        weight = (labelled[:, None] * (loss_bar / ctx.labels)).to(log_total.dtype)
        parts = (part.split(Surprise.ROWS) for part in (logits.flatten(0, -2), target, log_total, weight))
        room = log_total.new_empty((Surprise.ROWS, logits.shape[-1]))
        for bar, z, y, total, w in zip(logits_bar.flatten(0, -2).split(Surprise.ROWS), *parts, strict=True):
            p = room[: len(z)].copy_(z).sub_(total).exp_()
            p.scatter_add_(1, y, p.new_full(y.shape, -1.0))  # z̄ = p - 1[target]
            bar.copy_(p.mul_(w))
        return logits_bar, None, None


def count_labels(targets: Int[Tensor, "batch position"]) -> int:
    """Positions that have a label."""
    return int((targets != NO_LABEL).sum())
