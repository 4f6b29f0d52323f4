"""The same forward pass and loss in float64 throughout: what they would be without rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
def _wide_weights(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers hold float64 for as long; what is written to them then is lost."""
    held = [(one, one.data) for one in (*model.parameters(), *model.buffers())]
    try:
        for tensor, numbers in held:
            tensor.data = numbers.to(torch.float64) if numbers.dtype in NARROW else numbers.clone()
        yield
    finally:
        for tensor, numbers in held:
            tensor.data = numbers


def _what(made: object) -> str:
    return f"a tensor of shape {list(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"


def in_float64(model: nn.Module, function: Callable[[], Tensor], state: Tensor) -> float:
    """The number that a function gives, every operation of it in float64, weights and data as they are.

    Raises  ConfigError where PyTorch has something of it in no float64, or it gives no number
    """
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with as_drawn(state), torch.no_grad(), _wide_weights(model), Alike(), Widened():
            made = function()
            if not isinstance(made, Tensor) or made.numel() != 1:
                raise ConfigError(f"the loss in float64 is {_what(made)}, expected a tensor of one number")
            return float(made)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"the loss cannot be computed in float64: {one_line(error)[:200]}; error_of('loss') has the "
                          "account without it") from error  # fmt: skip
    finally:
        torch.set_default_dtype(default)
