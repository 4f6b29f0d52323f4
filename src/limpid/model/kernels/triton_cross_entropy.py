"""Loss and gradient of rows of logits on a graphics processor, in one Triton kernel: in their place, in one call.

A program has a row; its logits are read three times (their largest, the sum of exponentials, the gradient), the last
two times from the cache. Beside it: native/cross_entropy.cpp, the same on a processor.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from limpid.kernel_limits import has_triton
from limpid.model.kernels.native_call import Call
from limpid.quantities import NO_LABEL

FORMATS = (torch.bfloat16, torch.float16, torch.float32)
MOST_COLUMNS = 4096
"""Columns that a program goes over at a time."""


def serves(x: Tensor) -> bool:
    """Whether the kernel is there for the logits that a product with x makes."""
    return x.device.type == "cuda" and x.dtype in FORMATS and has_triton()


def row_losses(
    logits: Float[Tensor, "row vocab"], targets: Int[Tensor, " row"], weight: float
) -> Float[Tensor, " row"]:
    """-log p(target) of every row, 0 without a label; the logits become weight · (p - 1[target]).

    A target that is no column makes its loss a NaN, for to raise an error the processor would have to wait.
    """
    losses: Tensor = ROW_LOSSES(logits, targets, weight)
    return losses


def _row_losses(logits: Tensor, targets: Tensor, weight: float) -> Tensor:
    losses = logits.new_empty(len(logits), dtype=torch.float32)
    columns = min(MOST_COLUMNS, 1 << (logits.shape[1] - 1).bit_length())
    _kernel()[(len(logits),)](
        logits, targets.contiguous(), losses, weight, columns=logits.shape[1],
        COLUMNS=columns, NO_LABEL=NO_LABEL, num_warps=8,
    )  # fmt: skip
    return losses


def _row_losses_shapes(logits: Tensor, targets: Tensor, weight: float) -> Tensor:
    return logits.new_empty(len(logits), dtype=torch.float32)


@cache
def _kernel() -> Any:
    """The kernel, once Triton is loaded."""
    from limpid.model.kernels.triton_kernels import row_loss

    return row_loss


ROW_LOSSES = Call("row_losses_in_triton", _row_losses, _row_losses_shapes, mutates=("logits",), device="CUDA")
