"""Every operation of a step, checked as it happens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import torch
from torch import nn

from limpid.adjoints.watch import watched
from limpid.config.arguments import checked
from limpid.errors import ConfigError
from limpid.files import user_path
from limpid.operations.compiled import run_as_written
from limpid.operations.dispatched import Dispatched, Functions
from limpid.operations.gradients.projection import Along
from limpid.operations.kept import Keeper
from limpid.operations.step_recording import Recording as Recording


@checked
def recording(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    keep: str | Path | None = None,
    calls: bool = True,
    errors_of: Sequence[str] | Mapping[str, Along | None] = (),
) -> AbstractContextManager[Recording]:
    """Check every operation inside: forward, loss, backward, clipping, update, of any model and loss.

    Each is done again by NumPy in float64 from the inputs that the engine had, and held against a bound of its own
    rounding. The step itself is not changed. `verify()` of what is given says what came of it.

    keep   a new folder for what every call and module made: `limpid.operations.compare` takes two of them
    calls  False keeps what modules made alone, and checks nothing: compiled code, which PyTorch does not run where
           every call is looked at, runs as it is
    errors_of  numbers of the gradient whose error is accounted for beside the loss's: grad(NAME), which is its norm,
           grad(NAME)[i, j], or grad, the norm of all; or by names of one's own with a direction each, a tensor for
           each parameter: {"grad": None, "along the update": {"head.weight": v}}. Of loss: its account with
           all that is beyond the first order. What calls read and wrote is held until the backward pass ends
    """
    if not calls and keep is None:
        raise ConfigError("calls is False, which records nothing without keep: name a new folder")
    if errors_of and not calls:
        raise ConfigError("calls is False, which sees no call whose error errors_of asks for: leave one of them out")
    keep = None if keep is None else user_path(keep)
    return _recorded(model, optimizer, keep, calls, errors_of)


@contextmanager
def _recorded(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    keep: Path | None,
    calls: bool,
    errors_of: Sequence[str] | Mapping[str, Along | None],
) -> Iterator[Recording]:
    keeper = None if keep is None else Keeper(keep)
    found = Recording(model, keeper, errors_of)
    with ExitStack() as stack:
        stack.callback(found.end)
        if found.tape is not None:
            found.tape.watch(model)
        if keeper is not None:
            keeper.watch(model, found.path.names)
        if calls:
            stack.enter_context(found.path.followed())
        if optimizer is not None:
            stack.callback(optimizer.register_step_pre_hook(found.updating).remove)
            stack.callback(optimizer.register_step_post_hook(found.updated).remove)
        if calls:
            stack.enter_context(run_as_written(found.regions))
            stack.enter_context(watched(found.custom))
            stack.enter_context(Functions(found))
            stack.enter_context(Dispatched(found))
        yield found
        found.project()
    if keeper is not None:
        found.finish()
