"""Signals that ask a run to end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from limpid.training.mesh import Mesh

ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
]  # fmt: skip
"""Ctrl-C, a request to end, a terminal that is gone, Ctrl-\\; not every system has all of them."""


@contextmanager
def interruptions(mesh: Mesh) -> Iterator[Callable[[], bool]]:
    """Turn the first signal that asks to end into a request to stop after the current step; the second one kills.

    What was ignored before stays so: nohup asks that of SIGHUP, a shell without job control of Ctrl-C. Several
    processes hear of a Ctrl-C twice, the second time from torchrun, which itself kills those that do not end.
    """
    asked: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if mesh.world == 1:
            signal.signal(number, signal.SIG_DFL)

    heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
