"""Which of the optimizers that a loop has are stepped, and with whose rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from limpid.doctor.weights import local

Rates = tuple[float, ...]


def rates_set(schedulers: Sequence[Any], optimizer: Any) -> dict[int, tuple[Rates, Rates]]:
    """What each schedule of an optimizer has set last, and the rates of its groups now, by number of the schedule."""
    found: dict[int, tuple[Rates, Rates]] = {}
    groups = optimizer.param_groups
    for number, scheduler in enumerate(schedulers):
        last = getattr(scheduler, "_last_lr", None)
        if getattr(scheduler, "optimizer", None) is not optimizer or not isinstance(last, list):
            continue
        actual = [group.get("lr") for group in groups]
        if all(isinstance(rate, int | float) for rate in (*last, *actual)):
            found[number] = tuple(last), tuple(actual)
    return found


def idle_optimizers(optimizers: Sequence[Any], made: Counter[int]) -> Iterator[tuple[int, bool]]:
    """Identity of each optimizer beside others that has never stepped; whether what it alone holds has a gradient."""
    if len(optimizers) < 2:
        return
    for idle in (one for one in optimizers if not made[id(one)]):
        others = {id(p) for one in optimizers if one is not idle for p in _held(one)}
        own = [p.grad for p in _held(idle) if id(p) not in others and p.grad is not None and not p.grad.is_sparse]
        yield id(idle), any(bool(local(gradient).any()) for gradient in own)


def _held(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
