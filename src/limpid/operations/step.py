"""A step to be taken once, and what came of taking it under a recording."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from limpid.errors import ConfigError
from limpid.operations.recorder import Recording, recording
from limpid.operations.report import Again, Report


@dataclass(frozen=True)
class Step:
    """A model, its optimizer, and what takes forward, backward and update of them."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    take: Callable[[], Any]
    """A number that it gives is shown as the loss."""
    title: str
    fed: list[str]
    """What the model is given, in words, and what taking the step adds to that."""
    loss: Callable[[], Tensor] | None = None
    """Its forward pass alone, where that is known."""
    again: Again | None = None


def recorded(step: Step, keep: Path | None = None, errors_of: Sequence[str] = ()) -> Report:
    """Take a step under a recording.

    keep       a new folder for what each call made, to be compared with another's
    errors_of  numbers of the gradient whose error is accounted for, and measured where the loss is known by itself

    Raises  ConfigError where nothing of PyTorch ran
    """
    with (
        recording(step.model, step.optimizer, keep, errors_of=errors_of) as found,
        _measured(step, found, errors_of),
    ):
        found.facts.title, found.facts.fed, found.facts.again = step.title, step.fed, step.again
        found.facts.loss = loss = _number(step.take())
        if loss is not None and not math.isfinite(loss):
            found.facts.not_finite = "the loss"
        if not found.calls:
            raise ConfigError(f"{step.title} took no step: no operation of PyTorch ran in it")
    return found.verify()


@contextmanager
def _measured(step: Step, found: Recording, errors_of: Sequence[str]) -> Iterator[None]:
    """Before the weights change, take the same numbers in float64."""
    loss, optimizer = step.loss, step.optimizer
    if not errors_of or loss is None or optimizer is None:
        yield
        return

    def measure(*_: Any) -> None:
        for of in errors_of:
            with suppress(ConfigError):  # what is not in float64 is accounted for without it
                found.in_float64(loss, of)

    hook = optimizer.register_step_pre_hook(measure)
    yield
    hook.remove()


def _number(made: Any) -> float | None:
    """What the step gave, where it is one number."""
    if isinstance(made, Tensor) and made.numel() == 1 and not made.is_complex():
        with _disable_current_modes():
            return float(made.detach())
    return float(made) if isinstance(made, int | float) and not isinstance(made, bool) else None
