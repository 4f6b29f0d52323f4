"""Which module of a model is running, while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class ModulePath:
    """Names of the modules that are running, the innermost last."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.running = model, list[str]()
        self.names = {id(module): name for name, module in model.named_modules()}

    @property
    def innermost(self) -> str:
        """As `named_modules` has it; nothing for the model itself, and outside of it."""
        return self.running[-1] if self.running else ""

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Modules are noticed while this is open."""
        hooks = []
        for module in self.model.modules():
            hooks.append(module.register_forward_pre_hook(self._entered))
            hooks.append(module.register_forward_hook(self._left, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _entered(self, module: nn.Module, *_: Any) -> None:
        self.running.append(self.names[id(module)])

    def _left(self, *_: Any) -> None:
        if self.running:
            self.running.pop()
