"""What the main process does alone while the others wait: tokenizing, measuring, asking a reward of the user's.

A collective's limit would count the time that the work takes. So a thread of the main process broadcasts meanwhile that
it goes on: the others count its silence, and miss it at once when it is gone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

MOST_PAUSE = 60.0
"""Seconds between two signs, at most."""


@contextlib.contextmanager
def working(patience: float | None) -> Iterator[None]:
    """The main process's part; the others `wait`, so many seconds from one sign to the next.  None: nobody waits."""
    if patience is None:
        yield
        return
    ended, pause = threading.Event(), min(patience / 4, MOST_PAUSE)

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # told once more in the end, where an error can be raised
            while not ended.wait(pause):
                _sent_by_main(False)

    teller = threading.Thread(target=tell, daemon=True, name="still at work")
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        _sent_by_main(True)


def wait(patience: float | None) -> None:
    """The part of the others: until the main process is done."""
    while patience is not None and not _sent_by_main(False):
        pass


def _sent_by_main(done: bool) -> bool:
    """Whether the main process, wherever this is called, is done."""
    import torch.distributed as dist

    sent = torch.tensor(float(done))
    dist.broadcast(sent, src=0)
    return bool(sent)
