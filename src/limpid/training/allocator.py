"""The C library's allocator: freed memory stays with the process."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8
"""glibc's numbers for what mallopt sets."""
COMPACT = "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"
"""glibc's settings, read when a process starts, with which small freed objects join the free memory beside them."""


def start_again_with_compact_heap() -> None:
    """Start this command again, as the same process, with settings of the C library that only its start reads.

    Otherwise a small object settles in the gap behind each aligned array, and the next array of that size does not fit
    into the place that the first leaves. Does nothing on other C libraries, where GLIBC_TUNABLES is set, or in a
    process that has begun to work.
    """
    if "GLIBC_TUNABLES" in os.environ or "numpy" in sys.modules or not sys.executable:
        return
    try:
        if os.confstr("CS_GNU_LIBC_VERSION"):
            words = [sys.executable, *sys.orig_argv[1:]]
            os.execve(sys.executable, words, {**os.environ, "GLIBC_TUNABLES": COMPACT})
    except (AttributeError, ValueError, OSError):  # no glibc, or no right to start it
        return


def keep_freed_memory() -> None:
    """Ask the C library to keep freed memory for the next array instead of returning it to the system.

    A step allocates the same large arrays over and over; having the system hand out fresh pages for each takes longer
    than the arithmetic (the reference step of the default model: 3.1 s, against 0.8 s). Does nothing but on glibc.
    """
    _set(MMAP_THRESHOLD, 1 << 30)
    _set(TRIM_THRESHOLD, (1 << 31) - 1)
    _set(TOP_PAD, 1 << 26)


def share_one_heap() -> None:
    """Have all threads that begin from now on take memory from one heap, where what one has freed serves the others.

    Redoing the default model's step in several threads takes 1.4 GB instead of 2.4 with it, and a second less.
    """
    _set(ARENA_MAX, 1)


def keep_to_small_pages() -> None:
    """Have NumPy ask for no large pages, unless NUMPY_MADVISE_HUGEPAGE says otherwise; it reads this when it is loaded.

    Where free memory lies in small pieces, the system moves others' pages before it hands out a large one: up to 3.7 ms
    for 2 MB, while 512 small pages take 0.8.
    """
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")


def take_beside(size: int) -> None:
    """Take so many bytes from the system beside what goes on, for arrays to come, in a process that keeps freed memory.

    The system clears a page when it is first written to: 0.3 s for 850 MB, and more where it looks for large pages.
    Elsewhere, where memory does not come from a heap that stays, this does nothing.
    """
    library = ctypes.CDLL(None)
    if not sys.platform.startswith("linux") or getattr(library, "mallopt", None) is None:
        return
    for function in (library.malloc, library.sbrk):
        function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]

    def take() -> None:
        place = library.malloc(size)
        if place and place < library.sbrk(0):
            ctypes.memset(place, 0, size)
        library.free(place)

    threading.Thread(target=take, daemon=True).start()


def _set(what: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is not None:
        mallopt(what, value)
