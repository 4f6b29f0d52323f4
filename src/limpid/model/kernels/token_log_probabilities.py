"""The log-probability of each next token, straight from the last hidden state, a group of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from limpid import kernel_limits
from limpid.model.kernels.linear_cross_entropy import exponentials
from limpid.quantities import NO_LABEL


class TokenScores(NamedTuple):
    """What a model says of each position; 0 where there is no target."""

    log_probabilities: Float[Tensor, "batch position"]  # of the target, nats
    entropy: Float[Tensor, "batch position"] | None  # of the whole distribution, nats; no gradient


def token_log_probabilities(
    hidden: Float[Tensor, "batch position d_model"],
    matrix: Float[Tensor, "vocab d_model"],
    targets: Int[Tensor, "batch position"],
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> TokenScores:
    """log softmax(hidden · matrixᵀ / temperature)[target], and the entropy where it is asked for."""
    matrix = matrix if torch.is_grad_enabled() else matrix.detach()
    log_p, entropy = TokenLogProbabilities.apply(hidden, matrix, targets, temperature, with_entropy)
    return TokenScores(log_p, entropy if with_entropy else None)


class TokenLogProbabilities(torch.autograd.Function):
    """Never forms logits or log_probabilities of more than a group of rows, nor of rows without a target.

    The backward pass forms the logits again: a gradient per token is not known before it.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, matrix: Tensor, targets: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        labelled = (targets.flatten() != NO_LABEL).nonzero().squeeze(1)
        x, target = hidden.flatten(0, -2)[labelled], targets.flatten()[labelled, None]
        weight, wide = matrix.to(hidden.dtype), torch.promote_types(hidden.dtype, torch.float32)
        log_p, largest, mass, entropy = (x.new_empty((len(x), 1), dtype=wide) for _ in range(4))
        buffer = _buffer(x, weight, wide)
        for rows in _parts(
            slice(0, len(x)), kernel_limits.logits_rows(weight.shape[0], weight.dtype.itemsize, x.device.type)
        ):
            logits = x[rows] @ weight.T
            for of, part, p in _chunks(rows, logits, buffer):
                at_target = part.gather(1, target[of]).to(wide)
                p, largest[of], mass[of] = exponentials(part, p, temperature)
                log_p[of] = at_target.sub_(largest[of]).div_(temperature).sub_(mass[of].log())
                if with_entropy:
                    drop = torch.linalg.vecdot(p, part.to(wide).sub_(largest[of]))[:, None]
                    entropy[of] = mass[of].log() - drop / (temperature * mass[of])
        ctx.save_for_backward(hidden, matrix, labelled, target, largest, mass)
        ctx.temperature = temperature
        scores = _placed(log_p, labelled, targets)
        entropies = _placed(entropy, labelled, targets) if with_entropy else scores.new_empty(0)
        ctx.mark_non_differentiable(entropies)
        return scores, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, log_p_bar: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden, matrix, labelled, target, largest, mass = ctx.saved_tensors
        x, weight = hidden.flatten(0, -2)[labelled], matrix.to(hidden.dtype)
        bars = log_p_bar.flatten()[labelled, None].to(mass.dtype) / ctx.temperature
        x_bar, matrix_bar = torch.empty_like(x), torch.zeros_like(matrix) if ctx.needs_input_grad[1] else None
        buffer = _buffer(x, weight, mass.dtype)
        for rows in _parts(
            slice(0, len(x)), kernel_limits.logits_rows(weight.shape[0], weight.dtype.itemsize, x.device.type)
        ):
            logits = x[rows] @ weight.T
            for of, part, p in _chunks(rows, logits, buffer):
                p = p.copy_(part).sub_(largest[of]).div_(ctx.temperature).exp_()
                part.copy_(p.mul_(-bars[of] / mass[of]).scatter_add_(1, target[of], bars[of]))
            torch.mm(logits, weight, out=x_bar[rows])
            if matrix_bar is not None:
                matrix_bar.add_(logits.T @ x[rows])
        hidden_bar = torch.zeros_like(hidden)
        hidden_bar.view(-1, hidden.shape[-1])[labelled] = x_bar
        return hidden_bar, matrix_bar, None, None, None


def _buffer(x: Tensor, weight: Tensor, wide: torch.dtype) -> Tensor:
    """Where the softmax of a chunk is formed."""
    return x.new_empty((min(kernel_limits.softmax_rows(len(weight)), len(x)), len(weight)), dtype=wide)


def _parts(rows: slice, count: int) -> Iterator[slice]:
    """Rows, so many at a time."""
    return (slice(start, min(start + count, rows.stop)) for start in range(rows.start, rows.stop, count))


def _chunks(rows: slice, logits: Tensor, buffer: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Chunks of a group of rows: which they are, their logits, and as much of the buffer."""
    for of in _parts(rows, max(1, len(buffer))):
        part = logits[of.start - rows.start : of.stop - rows.start]
        yield of, part, buffer[: len(part)]


def _placed(values: Tensor, labelled: Tensor, targets: Tensor) -> Tensor:
    """A value for each position with a target, and 0 elsewhere."""
    placed = values.new_zeros(targets.numel())
    placed[labelled] = values.squeeze(1)
    return placed.view(targets.shape)
