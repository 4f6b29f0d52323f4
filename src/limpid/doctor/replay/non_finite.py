"""The first operation of a step whose inputs are finite and whose output is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from limpid.doctor.finding import Skipped

FILLS = ("masked_fill", "where", "full", "fill", "scalar_tensor", "new_full")
"""Operations that place values: an infinity in their output is a mask."""
UNSET = ("empty", "new_empty", "_local_scalar")
"""Operations whose output holds nothing yet."""


@dataclass
class Origin:
    """The first operation whose output is not finite though its inputs are."""

    op: str
    module: str
    backward: bool
    largest: float  # of its finite inputs
    inputs: tuple[str, ...]  # formats and shapes
    dtype: torch.dtype
    empty_rows: int = 0  # rows of a softmax with nothing visible
    exact_largest: float | None = None  # of the same operation in float64

    @property
    def name(self) -> str:
        """The operation without its overload."""
        return self.op.split(".")[0]

    @property
    def limit(self) -> float:
        """The largest number of its format."""
        return float(torch.finfo(self.dtype).max)

    @property
    def multiplies_queries_and_keys(self) -> bool:
        """Whether it is a batched product: both factors have 3 axes or more."""
        product = any(word in self.name for word in ("mm", "bmm", "matmul", "baddbmm", "dot"))
        axes = [entry[entry.index("[") :].count(",") + 1 for entry in self.inputs[:2]]
        return product and len(axes) == 2 and min(axes) >= 3


class NonFiniteSearch(TorchDispatchMode):
    """Stops looking at the first bad output; passes everything on unchanged."""

    def __init__(self, where: Callable[[], str]) -> None:
        super().__init__()
        self.where, self.backward = where, False
        self.found: Origin | None = None
        self.skipped = Skipped()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.found is None and isinstance(out, Tensor) and out.is_floating_point() and out.numel():
            with self.skipped.noting(str(func)):  # an operation that we cannot judge is not the culprit
                self.look(func, args, kwargs or {}, out)
        return out

    def look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        if bool(torch.isfinite(out).all()):
            return
        name = str(func).removeprefix("aten.")
        if name.startswith(UNSET):
            return
        nan = bool(torch.isnan(out).any())
        inputs = [a for a in _flat(args) if isinstance(a, Tensor) and a.is_floating_point()]
        if any(bool(torch.isnan(a).any()) for a in inputs):
            return
        if not nan:
            infinite = any(bool(torch.isinf(a).any()) for a in inputs)
            if infinite or name.startswith(FILLS):
                return
        finite = [a[torch.isfinite(a)].abs().max() for a in inputs if bool(torch.isfinite(a).any())]
        origin = Origin(
            name,
            self.where(),
            self.backward,
            float(max(finite)) if finite else 0.0,
            tuple(f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}" for a in inputs),
            out.dtype,
        )
        if "softmax" in name and inputs:
            axis = args[1] if len(args) > 1 and isinstance(args[1], int) else -1
            empty = (inputs[0] == -math.inf).all(axis)
            origin.empty_rows = int(empty.sum())
        if out.dtype in (torch.float16, torch.bfloat16):
            wide = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
            again = func(*wide, **kwargs)
            if isinstance(again, Tensor) and bool(torch.isfinite(again).all()):
                origin.exact_largest = float(again.abs().max())
        self.found = origin


def _flat(values: Any) -> list[Any]:
    return [e for v in values for e in (_flat(v) if isinstance(v, tuple | list) else [v])]
