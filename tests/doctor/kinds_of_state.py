"""Norms and hooks that remember, and the list of every model that does."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from doctor.stateful import (
    Annealed,
    Averaged,
    Base,
    Cached,
    Clamped,
    ClassCounter,
    Counter,
    Dropping,
    GlobalCounter,
    HelpedCounter,
    ListOfAuxiliaries,
    Normed,
    Noted,
    OwnNoise,
    Printing,
    SetsModes,
    Shapeless,
    ShortRows,
)


def with_(change: Callable[[nn.Linear], Any]) -> Callable[[], Base]:
    def make() -> Base:
        model = Base()
        change(model.middle)
        return model

    return make


def hooked() -> Base:
    """Hooks of every kind, which count; one changes the output a little."""
    model, fired = Base(), collections.Counter[str]()
    count = 0

    def after(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        nonlocal count
        count += 1
        fired["after"] += 1
        return output * (1 + 0.01 * count)

    def seen(name: str) -> Callable[..., None]:
        return lambda *_: fired.update([name])

    model.middle.register_forward_hook(after)
    model.middle.register_forward_pre_hook(seen("before"))
    model.middle.register_full_backward_hook(seen("backward"))
    model.middle.weight.register_hook(seen("gradient"))
    model.middle.weight.register_post_accumulate_grad_hook(seen("accumulated"))
    model.state = lambda: (count, dict(fired))  # type: ignore[method-assign]
    return model


def stepped_in_backward() -> Base:
    """An optimizer of its own for one weight, which steps as soon as its gradient is there."""
    model = Base()
    own = torch.optim.SGD([model.middle.bias], lr=0.1, momentum=0.9)

    def step(parameter: Tensor) -> None:
        own.step()
        own.zero_grad()

    model.middle.bias.register_post_accumulate_grad_hook(step)
    return model


def compiled() -> Any:
    model = Counter()
    made = torch.compile(model, backend="eager")
    made.state = model.state
    return made


KINDS: list[Callable[[], Any]] = [
    Counter, ClassCounter, GlobalCounter, HelpedCounter, Annealed, Cached, Averaged, Clamped, ShortRows, OwnNoise,
    ListOfAuxiliaries, Noted, SetsModes, Printing, Shapeless, Normed, Dropping, hooked, stepped_in_backward, compiled,
    with_(torch.nn.utils.weight_norm), with_(parametrizations.weight_norm), with_(torch.nn.utils.spectral_norm),
    with_(parametrizations.spectral_norm), with_(parametrizations.orthogonal),
]  # fmt: skip


NAMES = [kind.__name__ if kind.__name__ != "make" else f"norm{i}" for i, kind in enumerate(KINDS)]
