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
from limpid.files import MALFORMED, explained

if TYPE_CHECKING:
    from filelock import FileLock

LOCK = ".limpid-lock"
"""The file that is locked. It stays when the lock is given back: removing it would let two processes hold two files."""

MOMENT = 0.1
"""Seconds that whoever wants to write waits: whether a folder is held is found out by holding it for microseconds."""

_held: dict[tuple[int, ...], FileLock] = {}
"""By process, for a forked child inherits entries that are not its own; and by device and inode, for folders move."""


def hold(folder: Path) -> None:
    """Be the one process that writes into a folder, until `released_after` or the process ends.

    Raises  CheckpointError naming the process that is, or why the folder cannot be written
    """
    from filelock import FileLock, Timeout

    file = folder / LOCK
    if _identity(file) in _held:
        return
    lock = FileLock(file.absolute(), thread_local=False)
    with explained(f"cannot write {folder}"):
        try:
            lock.acquire(timeout=MOMENT, poll_interval=MOMENT / 10)
        except Timeout:
            raise CheckpointError(f"{folder} is being written by {_holder(file)}") from None
        _held[_identity(file)] = lock
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n")


def is_held(folder: Path) -> bool:
    """Whether a process, this one or another, writes into a folder now."""
    from filelock import FileLock, Timeout

    file = folder / LOCK
    if not file.is_file() or _identity(file) in _held:
        return file.is_file()
    try:
        with FileLock(file.absolute(), thread_local=False).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a folder that nobody here may write to
        return False


def release(folder: Path) -> None:
    """Give a folder's lock back, if this process holds it."""
    lock = _held.pop(_identity(folder / LOCK), None)
    if lock is not None:
        lock.release()


@contextlib.contextmanager
def released_after() -> Iterator[None]:
    """Give back at the end whatever was locked inside."""
    before = set(_held)
    try:
        yield
    finally:
        for one in set(_held) - before:
            _held.pop(one).release()


def _identity(file: Path) -> tuple[int, ...]:
    """This process and this file, whatever its name is; of a file that is not there nothing that is held."""
    try:
        state = file.stat()
    except OSError:
        return ()
    return os.getpid(), state.st_dev, state.st_ino


def _holder(file: Path) -> str:
    """Who holds a lock, as its file says, and what to do about it."""
    try:
        by = json.loads(file.read_text())
        pid, host, since = int(by["pid"]), str(by["host"]), str(by["since"])
    except (OSError, *MALFORMED):  # it holds the lock, and has not said so yet
        return "another process: wait until it ends"
    way_out = f"wait until it ends, or stop it with everything saved: kill -INT {pid}"
    return f"process {pid} on {host} since {since}: {way_out}"
