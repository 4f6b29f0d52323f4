"""Every call of a module inside one forward pass, whoever made the module, without a hook on any."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Before = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[nn.Module, Any, Any], None]


class ModuleCalls:
    """Tells of calls on this thread from `begin` to `end`; the call itself is passed on as it is."""

    busy = False
    """Whether somebody is told of calls: one at a time, so that what was there comes back."""

    def __init__(self, before: Before, after: After, is_paused: Callable[[], bool]) -> None:
        self.before, self.after, self.is_paused = before, after, is_paused
        self._original: Any = None

    def begin(self) -> None:
        if ModuleCalls.busy:
            return
        original, here = nn.Module.__call__, threading.get_ident()

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != here or torch.compiler.is_compiling() or self.is_paused():
                return original(module, *args, **kwargs)
            known = self.before(module, args, kwargs)
            output = original(module, *args, **kwargs)
            self.after(module, known, output)
            return output

        self._original, ModuleCalls.busy = original, True
        setattr(nn.Module, "__call__", call)  # noqa: B010  mypy takes it for a method of an instance

    def end(self) -> None:
        if self._original is not None:
            setattr(nn.Module, "__call__", self._original)  # noqa: B010
            self._original, ModuleCalls.busy = None, False
