"""Every call of a module, whoever made the module, without a hook on any."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

import torch
from torch import nn


class CallListener(Protocol):
    """Who is told of calls of modules on the thread that began to listen."""

    def wants_calls(self) -> bool: ...
    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def after_call(self, module: nn.Module, known: Any, output: Any) -> None: ...


_listeners: list[tuple[weakref.ref[CallListener], int]] = []
"""Each with its thread; nothing here keeps one alive."""
_original: list[Any] = []
"""nn.Module.__call__ as it was, while somebody listens."""


def listen(listener: CallListener) -> None:
    """Tell this one of calls, which are passed on as they are."""
    _listeners.append((weakref.ref(listener), threading.get_ident()))
    if _original:
        return
    original = nn.Module.__call__
    _original.append(original)

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(module, *args, **kwargs)
        here = threading.get_ident()
        told = [one for ref, thread in _listeners if thread == here and (one := ref()) is not None]
        known = [(one, one.before_call(module, args, kwargs)) for one in told if one.wants_calls()]
        output = original(module, *args, **kwargs)
        for one, what in known:
            one.after_call(module, what, output)
        return output

    setattr(nn.Module, "__call__", call)  # noqa: B010  mypy takes it for a method of an instance


def leave(listener: CallListener) -> None:
    """Tell this one no more, nor those that are gone; the last one leaves everything as it was."""
    _listeners[:] = [entry for entry in _listeners if entry[0]() not in (None, listener)]
    if not _listeners and _original:
        setattr(nn.Module, "__call__", _original.pop())  # noqa: B010
