"""Rust's panics, unsaid: what one writes to standard error stands in its exception too, which becomes our one line."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator

STANDARD_ERROR = 2


def is_panic(error: BaseException | None) -> bool:
    """Whether an exception was a panic in Rust; its class cannot be imported."""
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def panics_unsaid() -> Iterator[None]:
    """Hold back what is written to standard error, and drop it when it ends in a panic.

    In the main thread alone: the descriptor is the whole process's, and one that holds it may not meet another.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with contextlib.ExitStack() as last:
        try:
            before = os.dup(STANDARD_ERROR)
            last.callback(os.close, before)
            held = last.enter_context(tempfile.TemporaryFile())
            os.dup2(held.fileno(), STANDARD_ERROR)
        except OSError:  # it is closed, or nothing can be written anywhere
            yield
            return
        panicked = False
        try:
            yield
        except BaseException as error:
            panicked = is_panic(error)
            raise
        finally:
            os.dup2(before, STANDARD_ERROR)
            held.seek(0)
            if not panicked and (said := held.read()):
                os.write(STANDARD_ERROR, said)
