"""Whether a kernel may be called by its address, and for several parts at once: then no compiler, no recorder of
PyTorch's and no hook sees the call."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def is_unseen(x: Tensor) -> bool:
    """Whether x is plain memory, which nobody traces."""
    return type(x) is Tensor and not torch.compiler.is_compiling() and not is_watched()


def is_watched() -> bool:
    """Whether somebody sees every operation of PyTorch's."""
    return bool(torch._C._len_torch_dispatch_stack())


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_hooked(part: nn.Module) -> bool:
    """Whether somebody looks into the passes of this part of a model."""
    return any(getattr(part, hooks) for hooks in HOOKS)
