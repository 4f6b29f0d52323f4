"""What rounding did to values that take no part in the gradient, carried on to where it meets one that does.

A rotary table, a mask, the inner steps of a custom Function: their errors have no gradient to be weighed by. So their
difference from exact values is carried along, and enters the account as an error of the first operation that has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from limpid.adjoints.aten import mapped, outputs_of, short_name
from limpid.maths.operation import Array
from limpid.operations.arrays import address, exact, is_float, raw
from limpid.operations.call import Call
from limpid.operations.evaluate import CONSTANTS, evaluate
from limpid.operations.exact.movement import Raw
from limpid.operations.redo import with_storage, written

MOST = 1 << 28
"""Bytes of differences that are carried at a time."""


class _Off(NamedTuple):
    """An engine's values less the exact ones, and the call where that began."""

    difference: Array  # float32
    origin: Call


@dataclass(frozen=True)
class Inherited:
    """Differences that came in with values that take no part in the gradient, at the results of a call that does."""

    differences: Sequence[Array | None]
    origin: Call


class Carried:
    """Differences of tensors, as long as these are alive."""

    def __init__(self) -> None:
        self.off: Any = WeakTensorKeyDictionary()
        self.left = 0  # results whose differences were too large to be carried

    def before(self, operation: Any, given: dict[str, Any]) -> tuple[dict[str, Any], Call] | None:
        """Arguments as they would be without rounding, where one of them is off, and where that began."""
        if not self.off:
            return None
        found: list[_Off] = []
        mapped(list(given.values()), lambda one: found.append(self.off[one]) if one in self.off else None)
        exacts = None
        if found:
            whole = with_storage(operation, given)
            exacts = {key: mapped(value, self._exact) for key, value in whole.items()}, found[0].origin
        self._forget(operation, given)
        return exacts

    def after(
        self, call: Call, operation: Any, given: dict[str, Any], without: Any, made: Any, takes_part: bool
    ) -> Inherited | None:
        """Carry on what came in and what the call added; where there is a gradient, what came in enters the account."""
        results, own = outputs_of(made), list(call.errors)
        if without is None:
            if takes_part:
                return None
            if short_name(operation) in CONSTANTS:
                without = {key: mapped(value, _widened) for key, value in given.items()}, call
            else:
                self._keep(results, own, call)
                return None
        exacts, origin = without
        arrays = [None if one is None else raw(one) for one in results]
        off = [_less(one, value) for one, value in zip(arrays, evaluate(operation, exacts, arrays), strict=False)]
        if not takes_part:
            self._keep(results, off, origin)
            return None
        own = own or [None] * len(off)
        came = [one if one is None or mine is None else one - mine for one, mine in zip(off, own, strict=False)]
        return Inherited(came, origin)

    def _exact(self, tensor: Tensor) -> Raw:
        found = exact(raw(tensor))
        return found - self.off[tensor].difference if tensor in self.off else found

    def _keep(self, results: Sequence[Tensor | None], off: Sequence[Array | None], origin: Call) -> None:
        for one, difference in zip(results, off, strict=False):
            if one is None or difference is None or not np.any(difference):
                continue
            if difference.nbytes + sum(kept.difference.nbytes for kept in self.off.values()) > MOST:
                self.left += 1
            else:
                self.off[one] = _Off(difference, origin)

    def _forget(self, operation: Any, given: dict[str, Any]) -> None:
        """What is written over is not off any more, under whatever name."""
        places: set[int] = set()
        mapped([given[name] for name in written(operation)], lambda tensor: places.add(address(tensor)))
        for tensor in [one for one in self.off if address(one) in places] if places else ():
            del self.off[tensor]


def _widened(tensor: Tensor) -> Raw:
    return exact(raw(tensor))


def _less(engine: Raw | None, value: Array | None) -> Array | None:
    """The difference, 0 where a number is none."""
    if engine is None or value is None or value.shape != engine.shape or not is_float(engine):
        return None
    with np.errstate(all="ignore"):
        off = exact(engine) - value
        return np.where(np.isfinite(off), off, 0.0).astype(np.complex64 if np.iscomplexobj(off) else np.float32)
