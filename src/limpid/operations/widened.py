"""The same forward pass and loss in float64 throughout: what they would be without rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from limpid.adjoints.widened import NARROW, Alike, Widened
from limpid.errors import ConfigError
from limpid.files import one_line


@contextmanager
def as_drawn(state: Tensor) -> Iterator[None]:
    """With the random numbers that follow a state of the processor's generator; afterwards it is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state)
        yield


@contextmanager
def wide_weights(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers hold float64 for as long; what is written to them then is lost."""
    held = [(one, one.data) for one in (*model.parameters(), *model.buffers())]
    try:
        for tensor, numbers in held:
            tensor.data = numbers.to(torch.float64) if numbers.dtype in NARROW else numbers.clone()
        yield
    finally:
        for tensor, numbers in held:
            tensor.data = numbers


@contextmanager
def _wide_leaves(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Modules hold new parameters of float64 for as long, over the memory of the old: by name, each new and old one.

    An old one may have a graph behind it still, that takes no gradient but in its own format.
    """
    named = list(model.named_parameters())
    places = [
        (module, name, one) for module in model.modules() for name, one in module._parameters.items() if one is not None
    ]
    new = {id(one): nn.Parameter(one.data, one.requires_grad) for _, _, one in places}
    try:
        for module, name, one in places:
            setattr(module, name, new[id(one)])
        yield {name: [new[id(one)], one] for name, one in named}
    finally:
        for module, name, one in places:
            setattr(module, name, one)


def _what(made: object) -> str:
    return f"a tensor of shape {list(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"


def in_float64(model: nn.Module, function: Callable[[], Tensor], state: Tensor) -> float:
    """The number that a function gives, every operation of it in float64, weights and data as they are.

    Raises  ConfigError where PyTorch has something of it in no float64, or it gives no number
    """
    with _throughout(model, state, "the loss"), torch.no_grad():
        return float(_number(function()))


def gradient_in_float64(
    model: nn.Module, function: Callable[[], Tensor], state: Tensor, directions: Mapping[str, Tensor]
) -> float:
    """Σ ⟨v, g⟩ with the gradient of the number that a function gives, forward and backward in float64.

    Raises  ConfigError as `in_float64` does, and for a number that has no such gradient
    """
    with _throughout(model, state, "the gradient"), torch.enable_grad(), _wide_leaves(model) as leaves:
        made = _number(function())
        if not made.requires_grad:
            raise ConfigError("the loss in float64 has no gradient: expected one that parameters of the model lead to")
        asked = [(one, direction) for name, direction in directions.items() for one in leaves[name]]
        found = torch.autograd.grad(made, [one for one, _ in asked], allow_unused=True)
        return sum(float((got.double() * v).sum()) for got, (_, v) in zip(found, asked, strict=True) if got is not None)


@contextmanager
def _throughout(model: nn.Module, state: Tensor, of: str) -> Iterator[None]:
    """Everything inside is computed in float64.

    Raises  ConfigError where PyTorch has something of it in no float64
    """
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with as_drawn(state), wide_weights(model), Alike(), Widened():
            yield
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"{of} cannot be computed in float64: {one_line(error)[:200]}; error_of has the account "
                          "without it") from error  # fmt: skip
    finally:
        torch.set_default_dtype(default)


def _number(made: object) -> Tensor:
    if not isinstance(made, Tensor) or made.numel() != 1:
        raise ConfigError(f"the loss in float64 is {_what(made)}, expected a tensor of one number")
    return made
