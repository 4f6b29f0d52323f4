"""How many threads decode: one or all, whichever was faster when both were last tried.

Where other programs hold the processors, threads that meet several times per position wait for one another, and one
thread alone is faster, ten times at worst. No number of the system says so on every machine; the clock does.
Bits do not depend on the choice: every sum has one order (kernels/).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numba
import torch

from limpid.generation.cpu.kernels.compiled import PARALLEL
from limpid.maths.operation import Array

TRIAL = 2
"""Positions timed of each choice: the faster one counts, so that a pause of the system decides nothing."""
FIRST_REST, LONGEST_REST = 32, 2048
"""Positions between trials: doubled each time that nothing changed, so that trials end up a thousandth of the work."""


class Pace:
    """The number of threads of the next position."""

    def __init__(self, most: int) -> None:
        self.most, self.chosen = most, most
        self.seconds: dict[int, list[float]] = {}
        self.rest, self.left = FIRST_REST, 0

    @classmethod
    def here(cls) -> Pace:
        """Of as many threads as PyTorch uses, which `--threads` and OMP_NUM_THREADS set."""
        return cls(min(torch.get_num_threads(), numba.get_num_threads()) if PARALLEL else 1)

    @property
    def threads(self) -> int:
        """What the next position is computed with."""
        untried = [n for n in (self.most, 1) if len(self.seconds.get(n, ())) < TRIAL]
        return untried[0] if untried and self.left == 0 and self.most > 1 else self.chosen

    def timed(self, decode: Callable[..., Array], given: Sequence[Any]) -> Array:
        """Decode one position with these threads, and learn from how long it takes."""
        torch_before, threads, began = torch.get_num_threads(), self.threads, time.perf_counter()
        try:
            made = decode(*given) if threads == 1 else in_pool_of(threads, decode, given)
        finally:
            if torch.get_num_threads() != torch_before:  # numba's pool, when it starts, sets OpenMP's number for all
                torch.set_num_threads(torch_before)
        self.learn(threads, time.perf_counter() - began)
        return made

    def learn(self, threads: int, seconds: float) -> None:
        """Take note of one position."""
        if self.left:
            self.left -= 1
            return
        self.seconds.setdefault(threads, []).append(seconds)
        if self.most > 1 and all(len(self.seconds.get(n, ())) >= TRIAL for n in (1, self.most)):
            faster = min((1, self.most), key=lambda n: min(self.seconds[n]))
            self.rest = min(2 * self.rest, LONGEST_REST) if faster == self.chosen else FIRST_REST
            self.chosen, self.left = faster, self.rest
            self.seconds.clear()


def in_pool_of(threads: int, function: Callable[..., Array], given: Sequence[Any]) -> Array:
    """A call with so many of numba's threads."""
    before = numba.get_num_threads()
    if before == threads:
        return function(*given)
    numba.set_num_threads(threads)
    try:
        return function(*given)
    finally:
        numba.set_num_threads(before)
