"""A look that leaves no trace: random state, modes, gradients and buffers are as before."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn


@contextlib.contextmanager
def undisturbed(model: nn.Module, gradients: bool = False) -> Iterator[None]:
    """Run the block; afterwards nothing of the training has changed, whatever the block did to these.

    gradients   let the block compute gradients: those there are put aside and put back
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    state = (torch.get_rng_state(), random.getstate(), np.random.get_state())  # noqa: NPY002  the user's global state is what is kept
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    try:
        if gradients:
            for parameter, _ in kept:
                parameter.grad = None
        # where nobody has loaded the compiler, nothing is compiled; to load it takes a second
        loaded = "torch._dynamo" in sys.modules
        eager = torch.compiler.set_stance("force_eager") if loaded else contextlib.nullcontext()
        with torch.set_grad_enabled(gradients), eager:
            yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
        for module, training in modes:
            module.training = training
        torch.set_rng_state(state[0])
        random.setstate(state[1])
        np.random.set_state(state[2])  # noqa: NPY002
        if on_devices is not None:
            torch.cuda.set_rng_state_all(on_devices)


def seeded(seed: int = 0) -> None:
    """The same random numbers for every probe inside an undisturbed block."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
