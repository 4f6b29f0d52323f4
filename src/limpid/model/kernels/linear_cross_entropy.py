"""Fused linear cross-entropy: from the last hidden state to the loss, and both gradients, a group of rows at a time."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from limpid import kernel_limits
from limpid.model.kernels import native_cross_entropy, triton_cross_entropy
from limpid.quantities import NO_LABEL

KERNELS = (native_cross_entropy, triton_cross_entropy)
"""Kernels of limpid's own for the softmax of the logits, its loss and its gradient, each where it serves."""


def linear_cross_entropy(
    hidden: Float[Tensor, "batch position d_model"],
    matrix: Float[Tensor, "vocab d_model"],
    targets: Int[Tensor, "batch position"],
    labels: int,
    scale: float = 1.0,
) -> Float[Tensor, ""]:
    """-1/labels Σ log softmax(hidden · matrixᵀ)[target], nats per label; `scale` is the loss scale of backward."""
    matrix = matrix if torch.is_grad_enabled() else matrix.detach()
    loss: Tensor = LinearCrossEntropy.apply(hidden, matrix, targets, labels, scale)
    return loss


class LinearCrossEntropy(torch.autograd.Function):
    """The next-token loss of hidden @ matrixᵀ without ever holding all logits: never forms logits, log_probabilities.

    A group of rows at a time becomes logits, its share of the loss, and at once its share of both gradients, which are
    ready when backward asks for them. `scale` is the loss scale, so that float16 rounds what is scaled already.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, matrix: Tensor, targets: Tensor, labels: int, scale: float = 1.0) -> Tensor:
        x, weight, targets = hidden.flatten(0, -2), matrix.to(hidden.dtype), targets.flatten()
        wide = torch.promote_types(hidden.dtype, torch.float32)
        with_gradient = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        x_bar, weight_bar = torch.empty_like(x), None
        count = kernel_limits.logits_rows(weight.shape[0], weight.dtype.itemsize, x.device.type)
        total, buffer = x.new_zeros((), dtype=wide), None
        own = next((kernel for kernel in KERNELS if with_gradient and kernel.serves(x)), None)
        if own is None:
            chunk_rows = kernel_limits.softmax_rows(weight.shape[0])
            buffer = x.new_empty((max(1, min(chunk_rows, len(x))), weight.shape[0]), dtype=wide)
        for rows, answers, bar in zip(x.split(count), targets.split(count), x_bar.split(count), strict=True):
            logits = rows @ weight.T
            if own is not None:
                total += own.row_losses(logits, answers, scale / labels).sum()
            elif buffer is not None:
                total += _rows_loss(logits, answers, scale / labels, buffer, with_gradient)
            if with_gradient:
                torch.mm(logits, weight, out=bar)
            if ctx.needs_input_grad[1]:
                weight_bar = _add_product(weight_bar, logits, rows, matrix.dtype)
        ctx.save_for_backward(x_bar.view_as(hidden), weight_bar)
        ctx.scale = scale
        return total / labels

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_bar: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        hidden_bar, matrix_bar = ctx.saved_tensors
        factor = loss_bar / ctx.scale
        if type(factor) is Tensor and (factor.device.type != "cpu" or factor != 1):  # a fake tensor has no number
            hidden_bar = hidden_bar * factor.to(hidden_bar.dtype)
            matrix_bar = None if matrix_bar is None else matrix_bar * factor.to(matrix_bar.dtype)
        return hidden_bar, matrix_bar, None, None, None


def _add_product(total: Tensor | None, logits: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """total + logitsᵀ rows in a format of at least theirs, some of the vocabulary at a time: each product is added up
    while the caches hold it, and libraries are faster at several that are not tall."""
    count = kernel_limits.matrix_rows(logits.shape[1], logits.device.type)
    if count == logits.shape[1]:
        product = logits.T @ rows
        return product.to(dtype) if total is None else total.add_(product)
    begun = total is None
    total = rows.new_empty((logits.shape[1], rows.shape[1]), dtype=dtype) if total is None else total
    for part, bar in zip(logits.split(count, dim=1), total.split(count), strict=True):
        if begun and dtype == rows.dtype:
            torch.mm(part.T, rows, out=bar)
        elif begun:
            bar.copy_(part.T @ rows)
        else:
            bar.add_(part.T @ rows)
    return total


def _rows_loss(logits: Tensor, targets: Tensor, weight: float, buffer: Tensor, with_gradient: bool) -> Tensor:
    """`chunk_loss` of all rows, as many at a time as the buffer has room for."""
    chunks = zip(logits.split(len(buffer)), targets.split(len(buffer)), strict=True)
    total = buffer.new_zeros(())
    for part, answer in chunks:
        total += chunk_loss(part, answer, weight, buffer[: len(part)], with_gradient)
    return total


def chunk_loss(logits: Tensor, targets: Tensor, weight: float, buffer: Tensor, with_gradient: bool) -> Tensor:
    """Σ -log p(target) of some rows; with the gradient, their logits become weight · (p - 1[target])."""
    labelled = targets != NO_LABEL
    target = targets.where(labelled, 0)[:, None]
    at_target = logits.gather(1, target).to(buffer.dtype)
    p, largest, mass = exponentials(logits, buffer)
    if with_gradient:
        weights = weight * labelled[:, None].to(p.dtype)
        p.mul_(weights / mass).scatter_add_(1, target, -weights)
        logits.copy_(p)
    return mass.log_().add_(largest).sub_(at_target).where(labelled[:, None], 0.0).sum()


def exponentials(logits: Tensor, buffer: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """e^((z - max) / temperature) of some rows, in `buffer`; their max, and the sum that makes them probabilities."""
    largest = logits.amax(-1, keepdim=True).to(buffer.dtype)
    p = buffer.copy_(logits).sub_(largest)
    p = (p if temperature == 1 else p.div_(temperature)).exp_()
    return p, largest, p.sum(-1, keepdim=True)
