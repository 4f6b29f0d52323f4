"""What a call's errors come to, weighed with the gradients of its results as the backward pass has them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from limpid.maths.operation import Array
from limpid.operations.arrays import Unreadable, exact, raw
from limpid.operations.call import Call


class Slice(NamedTuple):
    """Which part of a tensor a call wrote to, by way of a view: the gradient that comes is that of the whole."""

    whole: tuple[torch.Size, tuple[int, ...]]
    view: tuple[torch.Size, tuple[int, ...], int]

    def of(self, gradient: Tensor) -> Tensor:
        """That part's gradient."""
        with _disable_current_modes():
            laid_out = torch.empty_strided(*self.whole, dtype=gradient.dtype, device=gradient.device)
            return laid_out.copy_(gradient).as_strided(*self.view)


def slice_of(view: Tensor) -> Slice | None:
    """Where a view lies in the tensor that it is one of."""
    base = view._base
    if base is None:
        return None
    begin = int(view.storage_offset()) - int(base.storage_offset())
    return Slice((base.shape, base.stride()), (view.shape, view.stride(), begin))


class Weighed:
    """Called with the gradients of a call's results, once these are there."""

    def __init__(self, call: Call, part: Slice | None = None) -> None:
        self.call, self.part = call, part
        self.errors, self.enters = call.errors, call.enters
        call.errors, call.enters = (), None  # they live as long as the graph does

    def __call__(self, gradients: tuple[Tensor | None, ...]) -> None:
        if self.part is not None:
            gradients = tuple(None if one is None else self.part.of(one) for one in gradients)
        self.call.error += _weighed(self.errors, gradients)
        if self.enters is not None:
            self.enters.origin.inherited_error += _weighed(_arrays(self.enters.inherited), gradients)
            self.call.beyond += _weighed(_arrays(self.enters.beyond), gradients)


def _arrays(several: Sequence[Tensor | None]) -> list[Array | None]:
    return [None if one is None else raw(one) for one in several]


def _weighed(errors: Sequence[Array | None], gradients: tuple[Tensor | None, ...]) -> float:
    """Σ ⟨ḡ, δ⟩ over the results of a call."""
    found = 0.0
    for error, gradient in zip(errors, gradients, strict=False):
        if error is not None and gradient is not None and gradient.shape == error.shape:
            with suppress(Unreadable):
                found += float(np.vdot(exact(raw(gradient)), exact(error)).real)
    return found
