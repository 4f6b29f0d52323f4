"""Which of several processes failed, at which step, doing what: said by one of them, in one line."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.errors import LimpidError
from limpid.terminal import on_one_line, say
from limpid.training.heartbeat import ENDED, PULSE, Heartbeat

if TYPE_CHECKING:
    from limpid.training.mesh import Mesh

PATIENCE = 3 * PULSE
"""Seconds in which a process that lives gives a sign of it, and one that failed says why."""
LIBRARIES = ("gloo/", "nccl", "ProcessGroup", "TCPStore")
"""What errors of collectives name: gloo's are plain RuntimeErrors."""


class RankFailed(LimpidError):
    """A process of several cannot go on because of another one; what was saved is whole."""


@contextlib.contextmanager
def named_failures(mesh: Mesh, agreed: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Let one line say which rank failed; on one process nothing.

    agreed  errors that all processes raise together, and that say enough
    Raises  RankFailed where another process failed; an error of this process's own as it is
    """
    try:
        yield
    except Exception as error:
        if mesh.heartbeat is None or isinstance(error, (RankFailed, *agreed)):
            raise
        with _sigterm_held_off():
            if own := not _of_a_collective(error):
                _tell_own(mesh.heartbeat, error)
                failed = error
            else:
                failed = RankFailed(reason(mesh.heartbeat, error))
                failed.told = not _first(mesh.heartbeat)
            if isinstance(failed, LimpidError) and failed.told:
                time.sleep(PATIENCE)  # torchrun ends all as soon as one has ended: first the one that says why
        if own:
            raise
        raise failed from error


def reason(heartbeat: Heartbeat, error: Exception) -> str:
    """Why a collective failed: what another process said of itself, or that one says nothing any more."""
    late = "timed out" in str(error).lower()
    try:
        heartbeat.store.set(f"hurt/{heartbeat.rank}", f"{time.time()} {'late' if late else 'cut'}")
        before, ends = heartbeat.pulses(), time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            if heartbeat.store.check(["failed"]) or heartbeat.store.check(["told"]):
                break
            time.sleep(PULSE / 10)
        if heartbeat.store.check(["failed"]):
            return str(heartbeat.store.get("failed").decode())
        if heartbeat.store.check(["told"]):
            return "another process failed"
        return _silent(heartbeat, before) or _between(heartbeat)
    except RuntimeError:
        return (
            f"{heartbeat.place}: the processes' store answers no more: rank 0 or torchrun, whichever keeps it, or its "
            "machine is gone"
        )


def _silent(heartbeat: Heartbeat, before: list[bytes]) -> str | None:
    """Who gave no sign of life meanwhile, but for those that left in good order."""
    pairs = enumerate(zip(before, heartbeat.pulses(), strict=True))
    silent = [rank for rank, (then, now) in pairs if then == now != ENDED and rank != heartbeat.rank]
    silent = [rank for rank in silent if rank not in _hurt(heartbeat)]
    if not silent:
        return None
    who = f"rank {silent[0]}" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))}"
    place = heartbeat.place_of(silent[0])
    if "late" in _hurt(heartbeat).values():
        return f"{who} stalled in {place}: the others waited for it until --timeout, and nothing is heard of it"
    return f"{who} ended without a word in {place}: it was killed, perhaps by a machine that ran out of memory"


def _between(heartbeat: Heartbeat) -> str:
    """All processes live: one that keeps the others waiting, or a connection that was cut."""
    hurt = _hurt(heartbeat)
    if "late" in hurt.values():  # who was late finds nobody there any more, or has not come that far
        late = next((rank for rank in range(heartbeat.world) if hurt.get(rank) != "late"), None)
        if late is None:
            return f"{heartbeat.place}: every process waited for another until --timeout, and all still ran"
        place = heartbeat.place_of(late)
        return f"rank {late} is late: it still stands in {place}, and the others waited for it until --timeout"
    first = sorted(list(hurt)[:2])
    who = f"ranks {first[0]} and {first[1]}" if len(first) == 2 else f"rank {first[0]} and another one"
    return f"the connection between {who} was cut in {heartbeat.place}: every process still ran"


def _hurt(heartbeat: Heartbeat) -> dict[int, str]:
    """Processes whose collective failed, in the order in which it did, and how."""
    found = []
    for rank in range(heartbeat.world):
        if heartbeat.store.check([f"hurt/{rank}"]):
            when, how = heartbeat.store.get(f"hurt/{rank}").decode().split()
            found.append((float(when), rank, how))
    return {rank: how for _, rank, how in sorted(found)}


def _tell_own(heartbeat: Heartbeat, error: Exception) -> None:
    """Let the others know why this process ends; unless it is a user's error, which is printed anyway, say it."""
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    said = str(root) if isinstance(root, LimpidError) else f"{type(root).__name__}: {on_one_line(str(root))}"
    line = f"rank {heartbeat.rank} failed in {heartbeat.place}: {said}"
    first = True
    with contextlib.suppress(RuntimeError):  # the store may be gone, too
        first = _first(heartbeat)
        heartbeat.store.compare_set("failed", "", line)
    if isinstance(error, LimpidError):
        error.told = not first
    elif first:
        say(f"limpid: error: {line}", file=sys.stderr)


def _first(heartbeat: Heartbeat) -> bool:
    """Whether this process is the one that speaks: nobody has before."""
    try:
        return int(heartbeat.store.add("told", 1)) == 1
    except RuntimeError:  # without a store nobody knows: better twice than never
        return True


def _of_a_collective(error: BaseException) -> bool:
    """Whether an error says that another process, or the way to it, failed."""
    from torch.distributed import DistError

    if isinstance(error, DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in LIBRARIES)


@contextlib.contextmanager
def _sigterm_held_off() -> Iterator[None]:
    """torchrun asks all to end as soon as one has: the line is said first; it kills those that take 30 s."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
