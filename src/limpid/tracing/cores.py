"""Work on several arrays at once, as many as there are cores: NumPy lets go of the interpreter while it computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from limpid.machine import processors

Given = TypeVar("Given")
Made = TypeVar("Made")

AHEAD = 3
"""Pieces for each core that are begun or wait for one: a long one does not keep the other cores from going on."""


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Matrix products take one thread: those of several at once wait for each other, and hold the cores meanwhile."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield


def in_order(work: Callable[[Given], Made], given: Sequence[Given], *, last_early: bool = False) -> Iterator[Made]:
    """What `work` makes of each, in order; few are begun ahead, so that few results wait in memory.

    last_early  begin the last one half-way: where it is a long one, nothing else would be left to do beside it
    """

    def quiet(one: Given) -> Made:
        with np.errstate(all="ignore"):  # of each thread by itself
            return work(one)

    cores = processors()
    if cores == 1:
        yield from map(quiet, given)
        return
    with one_thread_each(), ThreadPoolExecutor(cores) as pool:
        begun: deque[Future[Made]] = deque()
        early: Future[Made] | None = None
        try:
            for number, one in enumerate(given):
                if last_early and number == len(given) // 2:
                    early = pool.submit(quiet, given[-1])
                if len(begun) == AHEAD * cores:
                    yield begun.popleft().result()
                begun.append(early if early and number == len(given) - 1 else pool.submit(quiet, one))
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()
