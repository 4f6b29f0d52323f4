"""Optimizers of torch's that live in this process and were not given to the doctor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from limpid.doctor.alive import alive


def other_optimizers(given: Iterable[Any]) -> list[Optimizer]:
    """All that hold a tensor, but for those given; one walk over what the garbage collector knows."""
    known = {id(optimizer) for optimizer in given}
    return [one for one in alive(Optimizer) if id(one) not in known and getattr(one, "param_groups", None)]


def held_by(optimizers: Iterable[Any]) -> set[int]:
    """Identities of the tensors that they hold."""
    return {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
