"""The weights before the last update, worked out from what the optimizer remembers of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limpid.doctor.update_sample import decoupled, moments
from limpid.doctor.watched import Watched


class NotInvertible(Exception):
    """Why the last update cannot be taken back."""


@torch.no_grad()
def weights_before_update(watched: Watched, rates: list[float], share: float = 1.0) -> dict[str, Tensor]:
    """Weights by name, as they would be had the last update been made at (1 - share) of its rate.

    rates   of the parameter groups at that update
    Raises  NotUndone where the optimizer does not say what it did
    """
    if len(watched.optimizers) != 1:
        raise NotInvertible("there is more than one optimizer" if watched.optimizers else "no optimizer was given")
    (optimizer,) = watched.optimizers
    if len(rates) != len(optimizer.param_groups):
        raise NotInvertible("no update was seen yet")
    found: dict[str, Tensor] = {}
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        decay = rate * float(group.get("weight_decay") or 0.0) if decoupled(optimizer, group) else 0.0
        for parameter in group["params"]:
            name = watched.info.names.get(id(parameter))
            if name is None or not parameter.requires_grad or (parameter.grad is None and not optimizer.state):
                continue
            now = parameter.detach().float()
            earlier = (now + rate * _direction(optimizer, group, parameter)) / (1 - decay)
            found[name] = torch.lerp(now, earlier, share).to(parameter.dtype)
    if not all(bool(torch.isfinite(w).all()) for w in found.values()):
        raise NotInvertible("the last update wrote numbers that are not finite")
    return found


def _direction(optimizer: Any, group: dict[str, Any], parameter: Tensor) -> Tensor:
    """What the rate was multiplied by."""
    known = moments(optimizer, parameter, group)
    if known is not None:
        mean, root = known
        return mean / (root + float(group["eps"]))
    buffer = optimizer.state.get(parameter, {}).get("momentum_buffer")
    if isinstance(buffer, Tensor) and type(optimizer).__name__ == "SGD" and not group.get("nesterov"):
        return buffer.float()
    raise NotInvertible(f"{type(optimizer).__name__} keeps no record of what it added")
