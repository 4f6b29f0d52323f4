"""The moving average of the weights (EMA): part of the state, of checkpoints, and of what is evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from limpid.config import UpdateConfig
from limpid.model.spread import own_part


def begun(model: nn.Module, update: UpdateConfig) -> dict[str, Tensor]:
    """The average before the first update: the weights themselves; empty where none is kept."""
    if not update.ema_decay:
        return {}
    return {name: parameter.detach().clone() for name, parameter in _trained(model)}


def move(average: Mapping[str, Tensor], model: nn.Module, update: UpdateConfig, number: int) -> None:
    """Bring the average after update `number` towards the weights: d ← min(d, (1 + t) / (10 + t))."""
    if not average:
        return
    decay = min(update.ema_decay, (1 + number) / (10 + number))
    pairs = [(own_part(average[name]), own_part(parameter.detach())) for name, parameter in _trained(model)]
    torch._foreach_lerp_([own for own, _ in pairs], [new for _, new in pairs], 1 - decay)


@contextmanager
def in_place_of_weights(average: Mapping[str, Tensor], model: nn.Module) -> Iterator[None]:
    """The model with averaged weights, for as long as the block lasts; its own come back bit for bit."""
    kept = {name: parameter.detach().clone() for name, parameter in _trained(model)}
    try:
        _put(average, model)
        yield
    finally:
        _put(kept, model)


def _put(values: Mapping[str, Tensor], model: nn.Module) -> None:
    with torch.no_grad():
        for name, value in values.items():
            model.get_parameter(name).copy_(value)


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
