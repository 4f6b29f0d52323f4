"""Tests that leave traces in PyTorch, each in a process of its own."""

from __future__ import annotations

import functools
import multiprocessing
import os
import traceback
from collections.abc import Callable
from typing import Any


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a forked process: what it leaves in caches of the interpreter goes with it."""

    @functools.wraps(test)
    def run(*args: Any, **options: Any) -> None:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe(duplex=False)

        def child() -> None:
            try:
                test(*args, **options)
                there.send("")
            except BaseException:
                there.send(traceback.format_exc())
            finally:
                os._exit(0)

        process = context.Process(target=child)
        process.start()
        there.close()
        said = here.recv()
        process.join()
        assert not said, said

    return run
