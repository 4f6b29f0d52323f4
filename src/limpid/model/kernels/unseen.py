"""Whether a kernel may be called by its address: then no compiler and no recorder of PyTorch's sees the call."""

from __future__ import annotations

import torch
from torch import Tensor


def is_unseen(x: Tensor) -> bool:
    """Whether x is plain memory, which nobody traces."""
    return type(x) is Tensor and not torch.compiler.is_compiling() and not is_watched()


def is_watched() -> bool:
    """Whether somebody sees every operation of PyTorch's."""
    return bool(torch._C._len_torch_dispatch_stack())
