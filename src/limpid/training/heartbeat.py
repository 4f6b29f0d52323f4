"""Where each of several processes stands, told through the key-value store that they share.

A collective that fails names no rank. So each process says which step and phase it enters, at 2 µs a time, for the
store's client sends and waits for no answer; and a thread of it says every second that it lives.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from limpid.terminal import say

Phase = Literal[
    "starting", "reading data", "forward", "backward", "gradients", "clip", "update", "evaluating", "sampling",
    "saving", "ending",
]  # fmt: skip
PULSE = 1.0
"""Seconds between two signs of life."""
PATIENCE = 1800.0
"""Seconds that processes wait for one another until `--timeout` is known: PyTorch's own for gloo."""
SILENT = 30.0
"""Seconds without one after which the user is told: thirty are missing, and no lock of Python's is held so long."""
ENDED = b"ended"
"""The last sign of a process that left in good order."""
OPENED = itertools.count()
"""One number for each mesh of this process: the store outlives them."""


@dataclass(frozen=True)
class Place:
    """How far a process is."""

    step: int
    phase: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.phase}" if self.step else self.phase


class Heartbeat:
    """This process's place and pulse, and those of the others; each process of a mesh makes one at the same time."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        from torch.distributed.distributed_c10d import PrefixStore

        shared: Any = PrefixStore(f"limpid/heartbeat/{next(OPENED)}", store)
        self.store = shared
        self.rank, self.world = rank, world
        self.patience = PATIENCE
        self.say: Callable[[str], None] = lambda line: say(f"limpid: {line}", file=sys.stderr)
        self._left = threading.Event()
        self.at(0, "starting")
        store_of_thread = shared.clone()  # a client of its own: this one may wait for something
        self._thread = threading.Thread(target=self._live, args=(store_of_thread,), daemon=True, name="heartbeat")
        self._thread.start()

    def at(self, step: int, phase: Phase) -> None:
        """Tell the others what this process does from here on."""
        self.place = Place(step, phase)
        self.store.set(f"place/{self.rank}", f"{step} {phase}")

    def place_of(self, rank: int) -> Place:
        """What another process did last, as far as it said."""
        key = f"place/{rank}"
        if not self.store.check([key]):
            return Place(0, "starting")
        step, _, phase = self.store.get(key).decode().partition(" ")
        return Place(int(step), phase)

    def pulses(self) -> list[bytes]:
        """Every process's latest sign of life; empty of one that gave none."""
        return list(_values(self.store, [f"pulse/{rank}" for rank in range(self.world)]))

    def end(self) -> None:
        """Leave in good order, as far as the store is still there to be told."""
        self._left.set()
        self._thread.join(PULSE)

    def _live(self, store: Any) -> None:
        """Give signs of life; and listen: the first process to all others, the second to the first."""
        others = range(1, self.world) if self.rank == 0 else range(self.rank == 1)
        heard: dict[int, tuple[bytes, float]] = {}
        try:
            for count in itertools.count():
                store.set(f"pulse/{self.rank}", str(count))
                for rank, pulse in zip(others, _values(store, [f"pulse/{rank}" for rank in others]), strict=True):
                    self._listen(rank, pulse, heard)
                if self._left.wait(PULSE):
                    store.set(f"pulse/{self.rank}", ENDED)
                    return
        except RuntimeError:  # the store is gone, and with it who kept it: the next collective fails, which is named
            return

    def _listen(self, rank: int, pulse: bytes, heard: dict[int, tuple[bytes, float]]) -> None:
        now = time.monotonic()
        before, since = heard.setdefault(rank, (pulse, now))
        if pulse != before or not pulse:  # none yet: it is not there, and the store knows how long to wait for it
            heard[rank] = (pulse, now)
        elif now - since > SILENT and pulse != ENDED:
            heard[rank] = (pulse, float("inf"))  # said once
            self.say(f"rank {rank} stalls: nothing was heard of it for {SILENT:.0f} s, in {self.place_of(rank)}")


def _values(store: Any, keys: list[str]) -> Iterator[bytes]:
    """What lies under keys, empty where there is nothing: to ask for what is not there would wait for it."""
    if not keys:
        return
    yield from (
        store.multi_get(keys) if store.check(keys) else (store.get(key) if store.check([key]) else b"" for key in keys)
    )
