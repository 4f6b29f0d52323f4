"""How limpid's own kernels are called: whether they are there, by which way, and where arrays lie."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from limpid.model.kernels.unseen import is_unseen
from limpid.native.build import library


def is_here() -> bool:
    """Whether limpid's own kernels are on this machine."""
    return library() is not None


def has_kernels(device: str, dtype: torch.dtype) -> bool:
    """Whether products in this format on this device have kernels of limpid's own beside them."""
    return device == "cpu" and dtype == torch.bfloat16 and is_here()


has_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]  # PyTorch's decorator would load the compiler


def kernels() -> ctypes.CDLL:
    """The library; raises RuntimeError where there is none."""
    found = library()
    if found is None:
        raise RuntimeError("limpid's own kernels are not here: ask `is_here` first")
    return found


LIBRARY = torch.library.Library("limpid", "FRAGMENT")


class Call:
    """A kernel by its address, or as an operation of PyTorch's where somebody sees operations.

    Not by `torch.library.custom_op`, whose calls load the compiler.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        shapes: Callable[..., Any],
        mutates: Sequence[str] = (),
        device: str = "CPU",
    ) -> None:
        self.function = function
        LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=mutates))
        LIBRARY.impl(name, function, device)
        LIBRARY._register_fake(name, shapes)
        self.operation = getattr(torch.ops.limpid, name).default

    def __call__(self, x: Tensor, *rest: Any) -> Any:
        return self.function(x, *rest) if is_unseen(x) else self.operation(x, *rest)


def place(x: Tensor | None) -> ctypes.c_void_p:
    """Where an array begins; null for none."""
    return ctypes.c_void_p(None if x is None else x.data_ptr())


def numbers(*given: int) -> ctypes.Array[ctypes.c_int64]:
    """Whole numbers one after the other."""
    return (ctypes.c_int64 * len(given))(*given)


def size(count: int) -> ctypes.c_int64:
    """A number of entries."""
    return ctypes.c_int64(count)
