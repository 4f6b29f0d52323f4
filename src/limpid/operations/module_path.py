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
        self.hooks: list[Any] = []
        self.names = {id(module): name for name, module in model.named_modules()}

    @property
    def innermost(self) -> str:
        """As `named_modules` has it; nothing for the model itself, and outside of it."""
        return self.running[-1] if self.running else ""

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Modules are noticed while this is open."""
        self._follow()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is noticed for as long, and modules have no hooks of this."""
        is_followed, running = bool(self.hooks), list(self.running)
        self._leave()
        try:
            yield
        finally:
            self.running = running
            if is_followed:
                self._follow()

    def _follow(self) -> None:
        for module in self.model.modules():
            self.hooks.append(module.register_forward_pre_hook(self._entered))
            self.hooks.append(module.register_forward_hook(self._left, always_call=True))

    def _leave(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    def _entered(self, module: nn.Module, *_: Any) -> None:
        self.running.append(self.names[id(module)])

    def _left(self, *_: Any) -> None:
        if self.running:
            self.running.pop()
