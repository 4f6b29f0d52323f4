"""A process that a fault is done to: forked, stopped at a moment that was drawn, and waited for.

A moment is the n-th time that the process opens, makes, renames or removes something in its folder (Python's audit
events tell), or a time after its start. There it says where it is and waits until the harness has done its part.
"""

import contextlib
import json
import os
import select
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.robustness.bad.sandbox import obey_permissions

MOST_SAID = 1 << 22
"""Bytes of what a process says that are kept."""
TRACEBACK = 70
"""Exit code of a process in which an exception came out."""
WATCHED = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")
Work = Callable[[], object]
inherited: set[int] = set()
"""Sockets that this process has from the one that forked it."""


def sockets() -> set[int]:
    """Descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(int(name))
    return found


def nothing() -> None:
    """What most faults do in one of the two places."""


@dataclass(frozen=True)
class Moment:
    """When a fault strikes."""

    event: int | None = None
    """At so many file events in the folder; None goes by time."""
    seconds: float = 0.0
    """After that event, or after the start."""
    rank: int = 0


NEVER = Moment(event=-1)
"""Nothing strikes; events are counted."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    said: str
    seconds: float
    struck: str = ""
    """Where it was when the fault struck; empty when it ended before."""
    hung: bool = False
    events: Mapping[int, int] = field(default_factory=dict)
    """How many file events each of its processes had, of one that no fault was done to."""

    @property
    def line(self) -> str:
        """The last thing that it said."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""


@dataclass
class Disturbance:
    """The part of a fault that happens in the process itself."""

    moment: Moment
    inside: Work
    told: int
    """Pipe to the harness."""
    answered: int
    """Pipe from it."""
    folder: str = ""
    count: int = 0
    at: str = "start"
    struck: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def watching(self, rank: int = 0) -> Iterator[None]:
        """Watch this process, if it is the one that was drawn, and tell in the end how many events there were."""
        inherited.update(sockets())
        if rank == self.moment.rank or self.moment == NEVER:
            self.folder = os.getcwd()
            if self.moment.event is None:
                self._strike_after(self.moment.seconds)
            sys.addaudithook(self._heard)
        yield
        if self.moment == NEVER:
            self._tell([rank, self.count])

    def _heard(self, event: str, about: tuple[object, ...]) -> None:
        if event not in WATCHED or not isinstance(about[0], str | os.PathLike):
            return
        path = os.path.join(self.folder, os.fspath(about[0]))
        if not isinstance(path, str) or not path.startswith(self.folder + "/runs"):
            return
        self.count += 1
        self.at = f"{event.removeprefix('os.')} {os.path.relpath(path, self.folder)}"
        if self.count == self.moment.event:
            if self.moment.seconds:
                self._strike_after(self.moment.seconds)
            else:
                self._strike()

    def _strike_after(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._strike)
        timer.daemon = True
        timer.start()

    def _strike(self) -> None:
        with self.lock:
            if self.struck:
                return
            self.struck = True
        self._tell(self.at)
        os.read(self.answered, 1)
        self.inside()

    def _tell(self, what: list[int] | str) -> None:
        os.write(self.told, json.dumps([os.getpid(), what]).encode() + b"\n")


def run(
    work: Callable[[Disturbance], object],
    folder: Path,
    moment: Moment = NEVER,
    outside: Callable[[int, int], object] = lambda group, pid: None,
    inside: Work = nothing,
    limit: float = 300.0,
) -> Ended:
    """Do `work` in a forked process and a fault at its moment; after `limit` seconds it counts as hung.

    outside  called here, with the ids of the forked process and of the one that is to suffer, which waits meanwhile
    """
    from_child, told = os.pipe()
    answered, to_child = os.pipe()
    said_from, output = os.pipe()  # no file: a limit of file sizes would cut what it says of it
    began, struck, events, hung, status = time.monotonic(), "", dict[int, int](), False, None
    child = os.fork()
    if child == 0:
        os.close(from_child)
        os.close(to_child)
        os.close(said_from)
        _child(work, folder, Disturbance(moment, inside, told, answered), output)
    for end in (told, answered, output):
        os.close(end)
    said, pause, open_pipe = bytearray(), 0.002, True
    with _listening(said_from, said):
        while status is None:
            if open_pipe and select.select([from_child], [], [], pause)[0]:
                messages = os.read(from_child, 1 << 16)
                open_pipe = bool(messages)
                for pid, told_us in map(json.loads, messages.splitlines()):
                    if isinstance(told_us, list):
                        events[told_us[0]] = told_us[1]
                        continue
                    struck = told_us
                    outside(child, pid)
                    with contextlib.suppress(BrokenPipeError):  # it has ended already
                        os.write(to_child, b".")
            elif not open_pipe:
                time.sleep(pause)
            pause = min(0.05, 1.2 * pause)
            ended, ending = os.waitpid(child, os.WNOHANG)
            if ended:
                status = ending
            elif time.monotonic() - began > limit and not hung:
                hung = True
                os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # whatever it left behind
        os.close(from_child)
        os.close(to_child)
    seconds = time.monotonic() - began
    return Ended(os.waitstatus_to_exitcode(status), said.decode("utf-8", "replace"), seconds, struck, hung, events)


@contextlib.contextmanager
def _listening(pipe: int, said: bytearray) -> Iterator[None]:
    """What processes write to a pipe, kept until all of them have ended."""

    def listen() -> None:
        while chunk := os.read(pipe, 1 << 16):
            said.extend(chunk[: MOST_SAID - len(said)])
        os.close(pipe)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    yield
    listener.join(5)


def _child(work: Callable[[Disturbance], object], folder: Path, disturbance: Disturbance, output: int) -> None:
    """In the forked process: never returns."""
    code = 0
    try:
        os.setsid()
        os.chdir(folder)
        for number in (1, 2):
            os.dup2(output, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        obey_permissions()
        done = work(disturbance)
        code = done if isinstance(done, int) else 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = TRACEBACK
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            code = code or TRACEBACK
    os._exit(code & 255)
