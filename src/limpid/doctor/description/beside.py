"""Other models that a loop calls beside the watched one: in which mode, with what, and what they give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limpid.doctor.data_sheet import is_table, tensors_in
from limpid.doctor.description.inputs import measured
from limpid.doctor.description.likeness import likeness, same_rows
from limpid.doctor.description.words import counted, format_of, number

if TYPE_CHECKING:
    from limpid.doctor.calls import Call
    from limpid.doctor.step_record import StepRecord

ENTRIES = 2**16
"""Numbers of a tensor that are kept until the step has ended; of more its first rows."""
SHOWN, GIVEN = 4, 3
"""Models that are told of, and tensors that one is given."""


@dataclass
class Beside:
    """The calls of one model in a step."""

    module: nn.Module
    calls: int = 0
    training: set[bool] = field(default_factory=set)
    with_gradients: set[bool] = field(default_factory=set)
    given: list[Tensor] = field(default_factory=list)  # of the first call
    gave: Tensor | None = None
    learns: bool = False  # whether what it is given takes a gradient

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a call."""
        self.calls += 1
        self.training.add(self.module.training)
        self.with_gradients.add(torch.is_grad_enabled())
        if self.calls == 1:
            found = list(_tables_in([*args, *kwargs.values()]))
            self.learns = any(one.requires_grad for one in found)
            self.given = [_kept(one) for one in found[:GIVEN]]

    def returned(self, output: Any) -> None:
        """After it."""
        found = next((one for one in _tables_in(output) if one.is_floating_point()), None)
        if self.calls == 1 and found is not None:
            self.gave = _kept(found)

    def told(self, calls: list[Call]) -> str:
        """In a sentence.

        calls  of the watched model in the same step
        """
        parameters = list(self.module.parameters())
        asking = sum(p.requires_grad for p in parameters)
        asks = "none of its" if not asking else "all of its" if asking == len(parameters) else f"{asking} of its"
        modes = " and ".join(f"training mode{self._random()}" if one else "evaluation mode" for one in self.training)
        gradients = " and ".join(f"with{'' if one else 'out'} gradients" for one in self.with_gradients)
        size = sum(p.numel() for p in parameters)
        often = "once" if self.calls == 1 else f"{number(self.calls)} times"
        gave = "" if self.gave is None else f"; it gives {_in_words(self.gave)}"
        return (
            f"beside it {type(self.module).__name__} ({counted(size, 'parameter')}, {asks} {len(parameters)} tensors "
            f"require a gradient) was called {often} in this step, in {modes}, {gradients}: given "
            f"{self._what_it_is_given(calls)}{gave}"
        )

    def _random(self) -> str:
        """Layers that do something else in training mode than in evaluation."""
        named = (type(one).__name__ for one in self.module.modules() if one.training and getattr(one, "p", 1) != 0)
        found = [name for name in dict.fromkeys(named) if "Dropout" in name or "BatchNorm" in name]
        return f" ({', '.join(found)})" if found else ""

    def _what_it_is_given(self, calls: list[Call]) -> str:
        first = "" if self.calls == 1 else "the first time "
        return first + (", ".join(_as_given(one, self.learns, calls) for one in self.given) or "no tensor")


def beside(record: StepRecord) -> Iterator[str]:
    """The models that were called in a step, each in a sentence."""
    for one in list(record.besides.values())[:SHOWN]:
        yield one.told(record.calls)


def _tables_in(given: Any) -> Iterator[Tensor]:
    """Plain tables of numbers among what a model is given or gives."""
    return (one for one in tensors_in(given) if is_table(one) and not one.is_meta)


def _kept(tensor: Tensor) -> Tensor:
    """A copy, of the first rows where it is large."""
    rows = len(tensor) if tensor.ndim else 0
    fit = max(1, rows * ENTRIES // tensor.numel())
    return (tensor if not rows or fit >= rows else tensor[:fit]).detach().clone()


def _as_given(kept: Tensor, learns: bool, calls: list[Call]) -> str:
    """What a model is given, held against what the watched one is given."""
    known = "what this model is given"
    for call in calls:
        for own in _tables_in([*call.args, *call.kwargs.values()]):
            if same := same_rows(kept, own, known):
                return same
            if near := likeness(kept, own, known):
                return f"{_in_words(kept)}; {near}"
    return f"{_in_words(kept)}{', which takes a gradient' if learns and kept.is_floating_point() else ''}"


def _in_words(tensor: Tensor) -> str:
    shape = " × ".join(map(str, tensor.shape)) or "one number"
    if tensor.is_floating_point():
        return f"{shape}, {measured(tensor)}"
    return f"{shape}, {format_of(tensor.dtype)}, {number(int(tensor.min()))} to {number(int(tensor.max()))}"
