"""The calls of a step in their order, with the memory that each of them read and wrote: what a reverse pass goes over.

Tensors are held as views of their memory in the engine's own formats, nothing is copied; of what a call writes over,
the numbers from before it are kept, so that they can be put back on the way. Beside all memory lies what would stand
there, had nothing been rounded since the step began.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from limpid.adjoints.aten import mapped
from limpid.operations.gradients.again import follow
from limpid.operations.gradients.entry import Entry, Written, is_plain, views_of
from limpid.operations.gradients.memory import Exact
from limpid.operations.gradients.projection import Wanted


@dataclass
class Tape:
    """Filled while a step is taken."""

    entries: list[Entry] = field(default_factory=list)
    gradients: dict[str, tuple[Tensor, int]] = field(default_factory=dict)
    """Of parameters, where their gradients lie, and how many entries there were when the last part of it came."""
    roots: list[tuple[Tensor, int]] = field(default_factory=list)
    """What backward passes began at, and how many entries there were."""
    exact: Exact = field(default_factory=Exact)
    hooks: list[RemovableHandle] = field(default_factory=list)

    def watch(self, model: nn.Module) -> None:
        """Notice gradients as they come to parameters."""
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.hooks.append(parameter.register_post_accumulate_grad_hook(_Came(self, name)))

    def has_all(self, asked: Sequence[Wanted]) -> bool:
        """Whether all that numbers need has come."""
        return all(
            all(name in self.gradients for name in one.parameters) and (one.parameters or self.roots) for one in asked
        )

    def end(self) -> None:
        """Notice none any more, and let go of all memory."""
        for hook in self.hooks:
            hook.remove()
        self.hooks, self.entries, self.gradients, self.roots, self.exact = [], [], {}, [], Exact()

    def add(self, number: int, operation: Any, args: Any, kwargs: Any, made: Any, before: Written) -> None:
        """A call that was made."""
        with _disable_current_modes():
            taken = mapped(list(args), _view), {name: mapped(one, _view) for name, one in kwargs.items()}
            self.entries.append(Entry(number, operation, *taken, views_of(made, before), before))
            with torch.no_grad(), torch._C.DisableTorchFunction(), suppress(Exception):  # the step goes on
                follow(self.entries[-1], self.exact)


def _view(tensor: Tensor) -> Tensor:
    return tensor.detach() if is_plain(tensor) else tensor


class _Came:
    """A gradient, or another part of it, has been added up."""

    def __init__(self, tape: Tape, name: str) -> None:
        self.tape, self.name = tape, name

    def __call__(self, parameter: Tensor) -> None:
        with suppress(Exception), _disable_current_modes():  # what is no plain tensor has no account
            if parameter.grad is not None and is_plain(parameter.grad):
                self.tape.gradients[self.name] = parameter.grad.detach(), len(self.tape.entries)
