"""What a model's state_dict() returned, as long as somebody keeps it: tensors that share the memory of the weights."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

MOST = 8
"""Calls of state_dict() that are remembered."""


class KeptStates:
    """One tensor of each call, without keeping it alive, and how many updates had been made."""

    def __init__(self) -> None:
        self.updates = 0
        self._given: list[tuple[weakref.ref[Tensor], int]] = []

    def given(self, state: Mapping[str, Any]) -> None:
        """state_dict() has returned this."""
        first = next((value for value in state.values() if isinstance(value, Tensor) and value.numel()), None)
        self._given = [(ref, updates) for ref, updates in self._given if ref() is not None][-MOST:]
        if first is not None:
            self._given.append((weakref.ref(first), self.updates))

    def age(self, state: Mapping[str, Any], parameters: Iterable[Tensor]) -> int:
        """How many updates ago this was given out, where it still is the memory of these parameters; else 0."""
        held = {id(value) for value in state.values() if isinstance(value, Tensor)}
        own = {parameter.data_ptr() for parameter in parameters if parameter.numel()}
        kept = [(ref(), updates) for ref, updates in self._given]
        ages = [
            self.updates - updates for t, updates in kept if t is not None and id(t) in held and t.data_ptr() in own
        ]
        return max(ages, default=0)
