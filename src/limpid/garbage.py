"""Python's search for objects that nothing reaches, left out where it finds none."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unsearched() -> Iterator[None]:
    """While modules are loaded, which make objects that stay: a tenth of PyTorch's import."""
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()


def leave_the_end_unsearched() -> None:
    """Leave what is there when the process ends to the system: searching all of PyTorch's objects takes 0.25 s."""
    atexit.register(gc.freeze)
