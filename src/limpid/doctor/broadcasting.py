"""Predictions and targets of shapes that broadcast: each is compared with all the others' targets."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from limpid.doctor.skipped import Skipped

Shapes = tuple[tuple[int, ...], tuple[int, ...]]


def spread_out(prediction: Tensor, target: Tensor) -> bool:
    """Whether (n, 1) meets (n,), the one learned and the other given, so that n² differences come of n."""
    a, b = prediction.shape, target.shape
    if prediction.requires_grad == target.requires_grad or prediction.numel() != target.numel():
        return False
    longer, shorter = (a, b) if len(a) > len(b) else (b, a)
    return len(longer) == len(shorter) + 1 and longer[-1] == 1 and longer[:-1] == shorter and shorter[-1:] > (1,)


class Differences(TorchFunctionMode):
    """Looks for such a pair in everything that is computed inside."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Shapes | None = None
        self.skipped = Skipped()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        with self.skipped.noting("differences"):
            a, b = (*args, None, None)[:2]
            made = isinstance(out, Tensor) and isinstance(a, Tensor) and isinstance(b, Tensor)
            if made and (out.ndim == 0 or out.numel() == a.numel() * a.shape[0]) and spread_out(a, b):
                self.found = tuple(a.shape), tuple(b.shape)
        return out
