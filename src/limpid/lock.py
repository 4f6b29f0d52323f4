"""One writer per folder: a lock that ends with its process, and names who holds it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from limpid.errors import CheckpointError
from limpid.files import explained

if TYPE_CHECKING:
    from filelock import FileLock

LOCK = ".limpid-lock"
"""The file that is locked. It stays when the lock is given back: removing it would let two processes hold two files."""

_held: dict[tuple[int, Path], tuple[FileLock, int]] = {}
"""Locks with the inode that is locked, by process and folder: a forked child inherits entries that are not its own."""


def hold(folder: Path) -> None:
    """Be the one process that writes into a folder, until `released_after` or the process ends.

    Raises  CheckpointError naming the process that is, or why the folder cannot be written
    """
    from filelock import FileLock, Timeout

    place, file = folder.resolve(), folder / LOCK
    _, inode = _held.get((os.getpid(), place), (None, None))
    if file.exists() and file.stat().st_ino == inode:
        return
    release(place)  # of a folder that is gone
    lock = FileLock(place / LOCK, thread_local=False)
    with explained(f"cannot write {folder}"):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise CheckpointError(f"{folder} is being written by {_holder(file)}") from None
        _held[os.getpid(), place] = (lock, file.stat().st_ino)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n")


def release(folder: Path) -> None:
    """Give a folder's lock back, if this process holds it."""
    lock, _ = _held.pop((os.getpid(), folder.resolve()), (None, 0))
    if lock is not None:
        lock.release()


@contextlib.contextmanager
def released_after() -> Iterator[None]:
    """Give back at the end whatever was locked inside."""
    before = set(_held)
    try:
        yield
    finally:
        for _, place in set(_held) - before:
            release(place)


def _holder(file: Path) -> str:
    """Who holds a lock, as its file says, and what to do about it."""
    try:
        by = json.loads(file.read_text())
        pid, host, since = int(by["pid"]), str(by["host"]), str(by["since"])
    except (OSError, ValueError, TypeError, KeyError):  # it holds the lock, and has not said so yet
        return "another process: wait until it ends"
    way_out = f"wait until it ends, or stop it with everything saved: kill -INT {pid}"
    return f"process {pid} on {host} since {since}: {way_out}"
