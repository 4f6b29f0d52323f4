"""Arrays that the backward pass forms again, from others that it has anyway, instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

PLAIN = ("Tensor", "Parameter", "FakeTensor")
"""Types of what has its entries in one piece of memory, in this process, or would have where a step is rehearsed."""


class _Hold(torch.autograd.Function):
    """Saves a tensor as any operation does: under gradient checkpointing it is not kept, but recomputed."""

    @staticmethod
    def forward(ctx: Any, *sources: Tensor) -> Tensor:
        ctx.save_for_backward(*sources)
        return sources[0].new_empty(0)


class Again:
    """How to form an array again, to the same bits; formed once for all operations that read it."""

    def __init__(self, form: Callable[..., Tensor], *sources: Tensor) -> None:
        self.form, self.sources = form, sources
        self.held = None
        if any(one.requires_grad and not one.is_leaf for one in sources):
            self.sources, self.held = (), _Hold.apply(*sources)  # the result, for its node lives no longer than it
        self.readers = self.left = 0
        self.formed: Tensor | None = None

    def read(self) -> Tensor:
        """The array, for one of its readers; the last of them lets it go."""
        if self.formed is None:
            with torch.no_grad():
                sources = self.sources if self.held is None else self.held.grad_fn.saved_tensors
                self.formed, self.left = self.form(*sources), self.readers
        formed, self.left = self.formed, self.left - 1
        if self.left <= 0:
            self.formed = None
        return formed


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor).__name__ in PLAIN


def _memory(tensor: Tensor) -> int:
    """What tells one piece of memory from another, while it lives."""
    return int(tensor.untyped_storage()._cdata)


def formed_again(array: Tensor, form: Callable[..., Tensor], *sources: Tensor) -> Tensor:
    """Mark an array of which `form(*sources)` gives the same bits: products that read it need not keep it."""
    learning = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    there_anyway = all(one.requires_grad or isinstance(one, nn.Parameter) for one in sources)
    if learning and there_anyway and all(map(_is_plain, (array, *sources))) and array.is_contiguous():
        array.again = Again(form, *sources)  # type: ignore[attr-defined]
    return array


def keeping_less(*operands: Tensor) -> AbstractContextManager[Any]:
    """While one operation runs: what is marked of its operands is formed again, all else is kept as ever."""
    if torch.compiler.is_compiling():
        return nullcontext()
    marked = {_memory(one): one.again for one in operands if hasattr(one, "again")}
    if not marked:
        return nullcontext()

    def pack(saved: Tensor) -> Any:
        again = marked.get(_memory(saved)) if _is_plain(saved) else None
        if again is None:
            return saved
        again.readers += 1
        return again, saved.size(), saved.stride(), saved.storage_offset()

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        again, size, stride, offset = packed
        formed: Tensor = again.read().as_strided(size, stride, offset)
        return formed

    return saved_tensors_hooks(pack, unpack)
