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
    """`language_model(log_probabilities(stream @ matrix.T), …)` without ever holding all logits.

    A group of rows at a time becomes logits, its share of the loss, and at once its share of both gradients, which are
    ready when backward asks for them. `scale` is the loss scale, so that float16 rounds what is scaled already.
    """

    ROOM = 1 << 26
    """Bytes of logits at a time: large enough for whole matrix products, small beside what a block keeps."""
    CACHED = 1 << 19
    """Logits at a time whose softmax is formed, at least of `ROWS` rows: they stay in the processor's cache."""
    ROWS = 128

    @staticmethod
    def forward(ctx: Any, stream: Tensor, matrix: Tensor, targets: Tensor, labels: int, scale: float = 1.0) -> Tensor:
        x, weight, targets = stream.flatten(0, -2), matrix.to(stream.dtype), targets.flatten()
        wide = torch.promote_types(stream.dtype, torch.float32)
        learning = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        x_bar, weight_bar = torch.empty_like(x), None
        count = max(1, Surprise.ROOM // (weight.shape[0] * weight.element_size()))
        close = max(Surprise.ROWS, Surprise.CACHED // weight.shape[0])
        room = x.new_empty((min(close, len(x)), weight.shape[0]), dtype=wide)
        total = x.new_zeros((), dtype=wide)
        for rows, answers, bar in zip(x.split(count), targets.split(count), x_bar.split(count), strict=True):
            logits = rows @ weight.T
            parts = (logits.split(close), answers.split(close))
            for part, answer in zip(*parts, strict=True):
                total += surprises(part, answer, scale / labels, room[: len(part)], learning)
            if learning:
                torch.mm(logits, weight, out=bar)
                product = logits.T @ rows
                weight_bar = product.to(matrix.dtype) if weight_bar is None else weight_bar.add_(product)
        ctx.save_for_backward(x_bar.view_as(stream), weight_bar)
        ctx.scale = scale
        return total / labels

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_bar: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        stream_bar, matrix_bar = ctx.saved_tensors
        factor = loss_bar / ctx.scale
        if factor.device.type != "cpu" or factor != 1:
            stream_bar, matrix_bar = stream_bar * factor.to(stream_bar.dtype), matrix_bar * factor.to(matrix_bar.dtype)
        return stream_bar, matrix_bar, None, None, None


def surprises(logits: Tensor, targets: Tensor, weight: float, room: Tensor, learning: bool) -> Tensor:
    """Σ -log p(target) of some rows; when learning, their logits become weight · (p - 1[target])."""
    labelled = targets != NO_LABEL
    target = targets.where(labelled, 0)[:, None]
    at_target = logits.gather(1, target).to(room.dtype)
    largest = logits.amax(-1, keepdim=True).to(room.dtype)
    p = room.copy_(logits).sub_(largest).exp_()
    mass = p.sum(-1, keepdim=True)
    if learning:
        weights = weight * labelled[:, None].to(p.dtype)
        p.mul_(weights / mass).scatter_add_(1, target, -weights)
        logits.copy_(p)
    return (mass.log_().add_(largest).sub_(at_target))[labelled].sum()


def count_labels(targets: Int[Tensor, "batch position"]) -> int:
    """Positions that have a label."""
    return int((targets != NO_LABEL).sum())
