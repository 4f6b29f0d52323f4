"""Jobs done by processes of their own, which end with the one that started them."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from limpid.errors import DataError

Job = TypeVar("Job")
Done = TypeVar("Done")
Advance = Callable[[int], None]
"""Called by a job with how much more of it is done."""
Work = Callable[[Job, Advance], Done]
SECONDS = 5.0
"""How long a process that was told to stop may take."""


def work(function: Work[Job, Done], jobs: Sequence[Job], processes: int, advance: Advance) -> Iterator[Done]:
    """The result of each job as it is done, in any order; by this process alone where one is enough.

    Raises  what the first job that fails raises; DataError where the system ended a process
    """
    if min(processes, len(jobs)) < 2:
        yield from (function(job, advance) for job in jobs)
        return
    waiting = iter(jobs)
    at_work: dict[Connection, BaseProcess] = {}
    try:
        for job in itertools.islice(waiting, processes):
            started, process = _started(function)
            at_work[started] = process
            started.send(job)
        while at_work:
            for connection in wait(list(at_work)):
                assert isinstance(connection, Connection)
                what, value = _said(connection, at_work[connection])
                if what == "advanced":
                    advance(value)
                    continue
                if what == "failed":
                    raise value
                yield value
                for job in itertools.islice(waiting, 1):
                    connection.send(job)
                    break
                else:
                    connection.close()
                    at_work.pop(connection).join()
    finally:
        for process in at_work.values():
            process.terminate()
        for process in at_work.values():
            process.join(SECONDS)


def _started(function: Work[Any, Any]) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of threads that it does not copy
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(function, there), daemon=True)
    process.start()
    there.close()
    return here, process


def _said(connection: Connection, process: BaseProcess) -> tuple[str, Any]:
    try:
        what, value = connection.recv()
    except (EOFError, ConnectionResetError):
        process.join(SECONDS)
        raise DataError(
            f"a process that did a part of the work was ended by the system (exit code {process.exitcode}), often for "
            "want of memory: start again with fewer --processes; what was done is kept"
        ) from None
    return what, value


def _serve(function: Work[Any, Any], connection: Connection) -> None:
    """Do the jobs that come until nobody sends any: each process encodes on one thread, and Ctrl-C is its parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["RAYON_NUM_THREADS"] = "1"
    try:
        while True:
            job = connection.recv()
            try:
                said = "done", function(job, lambda more: connection.send(("advanced", more)))
            except Exception as error:
                said = "failed", error
            connection.send(said)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone, or has no more to do
        return
