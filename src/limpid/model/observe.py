"""Reporting quantities by name: whoever listens sees every value of the step; nobody pays when nobody does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import Tensor, nn

Listener = Callable[[str, Tensor], Tensor]

_listener: Listener | None = None


def report(name: str, value: Tensor) -> Tensor:
    """Pass `value` on, through the listener when there is one. What it returns is what the model goes on with."""
    return value if _listener is None else _listener(name, value)


def observing() -> bool:
    """Whether somebody listens: fused paths, which never form some quantities, then give way to plain ones."""
    return _listener is not None


class Part(nn.Module):
    """A part of the model with a place in the vocabulary, such as blocks.3.attention.

    The place is read only when somebody listens: code compiled for one block then serves every block.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def report(self, what: str, value: Tensor) -> Tensor:
        """`report`, under the part's own name."""
        return value if _listener is None else _listener(f"{self.name}.{what}", value)


@contextlib.contextmanager
def observed(listener: Listener) -> Iterator[None]:
    """Report every quantity of the forward passes inside this block to `listener`."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
