"""The C library's allocator: freed memory stays with the process."""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""glibc's numbers for what mallopt sets."""


def keep_freed_memory() -> None:
    """Ask the C library to keep freed memory for the next array instead of returning it to the system.

    A step allocates the same large arrays over and over; having the system hand out fresh pages for each takes longer
    than the arithmetic (the reference step of the default model: 3.1 s, against 0.8 s). Does nothing but on glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 1 << 30)
        mallopt(TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(TOP_PAD, 1 << 26)
