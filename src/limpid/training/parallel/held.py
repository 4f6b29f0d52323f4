"""Bytes of all tensors that there are, while operators run; of fake ones, which have a size and no memory, too."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Held(TorchDispatchMode):
    """Counts every storage once, from when an operator makes it until nothing refers to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.distributed.tensor import DTensor

        if DTensor in types:
            return NotImplemented  # it becomes operators on what this rank holds
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, Tensor):
                self.see(one)
        return made

    def see(self, tensor: Tensor) -> None:
        """Count what a tensor is stored in, unless it is counted already."""
        inner = getattr(tensor, "_local_tensor", tensor)
        self.resized(inner.untyped_storage())

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count a storage at the size that it has now."""
        key = storage._cdata
        if key not in self.sizes:
            weakref.finalize(storage, self._gone, key)
        self.now += storage.nbytes() - self.sizes.get(key, 0)
        self.sizes[key] = storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _gone(self, key: int) -> None:
        self.now -= self.sizes.pop(key, 0)


@contextlib.contextmanager
def holding() -> Iterator[Held]:
    """Count while the block runs, also what is given up and taken again without an operator, as FSDP does."""
    held, resize = Held(), torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        made = resize(storage, size)
        held.resized(storage)
        return made

    with patch.object(torch.UntypedStorage, "resize_", resized), held:
        yield held
