"""A recorded call: its arguments and results as views of memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from limpid.adjoints.aten import mapped, outputs_of
from limpid.operations.arrays import PLAIN
from limpid.operations.redo import written

Written = list[tuple[Tensor, Tensor]]
"""Views that were written over, and the numbers there from before."""


@dataclass
class Entry:
    """Nothing is copied but what it wrote over."""

    number: int  # of the call in the recording
    operation: Any
    args: Any
    kwargs: dict[str, Any]
    made: list[Tensor | None]  # of a call that gives nothing, what it wrote over
    before: Written
    exact_before: Written = field(default_factory=list)  # the same of what would have been there without rounding

    @property
    def results(self) -> list[Tensor]:
        """Views of what it wrote, in its results or over its arguments."""
        return [one for one in self.made if one is not None] + [view for view, _ in self.before]


def written_over(operation: Any, given: dict[str, Any]) -> Written:
    """What a call that is about to be made will write over."""
    found: Written = []

    def keep(tensor: Tensor) -> None:
        if is_plain(tensor):
            found.append((tensor.detach(), tensor.detach().clone()))

    with _disable_current_modes():
        mapped([given[name] for name in written(operation) if name in given], keep)
    return found


def views_of(made: Any, before: Written) -> list[Tensor | None]:
    """Views of what a call gave; of one that gives nothing, of what it wrote over."""
    if made is None:
        return [view for view, _ in before]
    return [one.detach() if one is not None and is_plain(one) else None for one in outputs_of(made)]


def is_plain(tensor: Tensor) -> bool:
    """Whether it is a view of memory that can be read."""
    return (
        type(tensor) in PLAIN
        and tensor.layout == torch.strided
        and not (tensor.is_meta or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not tensor._is_zerotensor()
    )


def is_fraction(tensor: Tensor) -> bool:
    """Whether it is of a format of fractions, complex ones too."""
    return tensor.is_floating_point() or tensor.is_complex()
