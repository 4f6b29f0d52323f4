"""A CUDA graph of pretence: what a device is asked to do, written down, and done again at the same addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

WAITS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
"""What hands numbers of the device to the host, which a graph cannot."""


def _tensors(value: Any) -> list[Tensor]:
    return [one for one in tree_flatten(value)[0] if isinstance(one, Tensor)]


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class Tape(TorchDispatchMode):
    """Every operation while it is entered, with what it read and where its results lie, which it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[Any, Any, Any, list[Tensor], set[int]]] = []
        self.changed: dict[int, tuple[Tensor, Tensor]] = {}  # what was there before, and its numbers
        self.own: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        if func in WAITS or len({one.device for one in given if one.ndim}) > 1:
            raise RuntimeError(f"{func} is not permitted while a graph is recorded")
        read = {_memory(one) for one in given}
        if func._schema.is_mutable:
            before = {_memory(one): (one, one.clone()) for one in given if _memory(one) not in self.own}
            self.changed = before | self.changed
        made = func(*args, **kwargs)
        self.own |= {_memory(one) for one in _tensors(made)} - read
        self.lines.append((func, args, kwargs, _tensors(made), read))
        return made

    def undo(self) -> None:
        """A graph that is recorded has computed nothing: what was there is as before, and results are no numbers."""
        for there, before in self.changed.values():
            there.copy_(before)
        for *_, results, read in self.lines:
            for one in results:
                if _memory(one) not in read and one.is_floating_point():
                    one.fill_(torch.nan)

    def play(self) -> None:
        """Do it all again: results go where they were, without a line of Python in between."""
        with torch.no_grad():
            for func, args, kwargs, there, read in self.lines:
                for old, new in zip(there, _tensors(func(*args, **kwargs)), strict=True):
                    if _memory(old) not in read:
                        old.copy_(new)


class OnTape:
    """Records as `limpid.training.cuda_graphs.OnDevice` does."""

    def warm_up(self, work: Callable[[], object]) -> None:
        work()

    def record(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        tape = Tape()
        with tape:
            made = work()
        with torch.no_grad():
            tape.undo()
        return tape.play, made
