"""Loss and gradient of rows of bfloat16 logits in limpid's own kernel, native/cross_entropy.cpp: in their place, in one
call. The rest of `linear_cross_entropy` is products, which libraries make."""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Float, Int
from torch import Tensor

from limpid.model.kernels.native_call import Call, has_kernels, kernels, place, size
from limpid.quantities import NO_LABEL


def serves(x: Tensor) -> bool:
    """Whether the kernel is there for the logits that a product with x makes."""
    return has_kernels(x.device.type, x.dtype)


def row_losses(
    logits: Float[Tensor, "row vocab"], targets: Int[Tensor, " row"], weight: float
) -> Float[Tensor, " row"]:
    """-log p(target) of every row, 0 without a label; the logits become weight · (p - 1[target])."""
    losses: Tensor = ROW_LOSSES(logits, targets, weight)
    return losses


def _row_losses(logits: Tensor, targets: Tensor, weight: float) -> Tensor:
    targets, losses = targets.contiguous(), logits.new_empty(len(logits), dtype=torch.float32)
    outside = kernels().cross_entropy(
        *map(place, (logits, targets, losses)), *map(size, logits.shape), ctypes.c_float(weight), size(NO_LABEL),
        torch.get_num_threads(),
    )  # fmt: skip
    if outside:
        raise IndexError(f"{outside} targets lie outside the vocabulary of {logits.shape[1]}")
    return losses


def _row_losses_shapes(logits: Tensor, targets: Tensor, weight: float) -> Tensor:
    return logits.new_empty(len(logits), dtype=torch.float32)


ROW_LOSSES = Call("row_losses", _row_losses, _row_losses_shapes, mutates=("logits",))
