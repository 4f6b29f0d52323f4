"""The faults: what is done to a process at a moment, or to its files once it has ended, and how a user mends it."""

import contextlib
import os
import random
import resource
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.endurance import process

PAGE = 4096
BALLAST = "ballast"
AWAY = "moved-away"
DECADE = 10 * 365 * 86400.0


@dataclass
class Place:
    """What a fault may touch."""

    folder: Path
    """Where the process works; its run lies in runs/run."""
    rng: random.Random
    checkpoint: Callable[[], list[Path]]
    """Files of the newest checkpoint."""
    logs: Callable[[], dict[Path, int]]
    """Files that grow by lines, and how many bytes of them are older than the newest checkpoint."""
    group: int = 0
    """The process that was started; of several, torchrun's agent."""
    pid: int = 0
    """The one that was drawn."""

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "run"


Act = Callable[[Place], object]


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    act: Act = lambda place: None
    """At the moment, from outside, while the process waits."""
    inside: Callable[[random.Random], object] | None = None
    """At the moment, in the process."""
    damage: Act = lambda place: None
    """To its files, once it has ended."""
    mend: Act = lambda place: None
    """What a user does about the machine before going on."""
    processes: tuple[int, ...] = (1, 2)
    goes_on: bool = False
    """The process is to end by itself as if nothing had been."""
    names: bool = False
    """Of several processes those that go on are to say which rank failed, at which step, in which phase."""
    keeps_all: bool = False
    """It has the chance to save: no step may have to be taken again."""


def send(number: int, times: int = 1) -> Act:
    """A signal to what was started, and a Ctrl-C to all that it started, as a terminal sends it; twice if impatient."""

    def act(place: Place) -> None:
        for _ in range(times):
            (os.killpg if number == signal.SIGINT else os.kill)(place.group, number)
            time.sleep(place.rng.uniform(0, 0.02) if times > 1 else 0)

    return act


def kill(place: Place) -> None:
    """No warning."""
    os.kill(place.pid, signal.SIGKILL)


def kill_all(place: Place) -> None:
    os.killpg(place.group, signal.SIGKILL)


def slow(place: Place) -> None:
    """Stopped for a moment, as a machine that swaps or a neighbour that computes would."""
    os.kill(place.pid, signal.SIGSTOP)
    time.sleep(place.rng.uniform(0.1, 1.5))
    os.kill(place.pid, signal.SIGCONT)


def stall(place: Place) -> None:
    os.kill(place.pid, signal.SIGSTOP)


def fill(place: Place) -> None:
    """Leave a few pages of the file system: all of it is taken first, whatever others write meanwhile."""
    with (place.folder / BALLAST).open("wb", buffering=0) as ballast:
        with contextlib.suppress(OSError):
            while ballast.write(bytes(1 << 16)):
                pass
        ballast.truncate(max(0, ballast.tell() - place.rng.randrange(16) * PAGE))


def make_room(place: Place) -> None:
    (place.folder / BALLAST).unlink(missing_ok=True)


def small_files(rng: random.Random) -> None:
    """No file may grow beyond so many bytes: what a full quota looks like where nothing can be mounted."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randrange(20_000), resource.RLIM_INFINITY))


def few_files(rng: random.Random) -> None:
    """No further file can be opened."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (rng.randrange(3, 8), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def little_memory(rng: random.Random) -> None:
    """Hardly any memory beyond what is held."""
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + rng.randrange(1 << 20), resource.RLIM_INFINITY))


def clock(rng: random.Random) -> None:
    """The wall clock jumps by up to ten years, for Python's `time`; the monotonic one never does."""
    jump = rng.uniform(-DECADE, DECADE)
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + jump
    time.time_ns = lambda: now_ns() + int(jump * 1e9)


def old_files(place: Place) -> None:
    """What was written bears times of a clock that jumped."""
    for path in place.run.rglob("*"):
        jump = time.time() + place.rng.uniform(-DECADE, DECADE)
        os.utime(path, (jump, jump))


def cut(rng: random.Random) -> None:
    """Every connection of the process ends, as when a cable is pulled and the other side gives up."""
    for number in process.sockets() - process.inherited:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
            one.shutdown(socket.SHUT_RDWR)


def _folders(place: Place) -> Iterator[Path]:
    if place.run.is_dir():  # a fault may come before the run has a folder
        yield place.run
    yield from (path for path in place.run.rglob("*") if path.is_dir())


def read_only(place: Place) -> None:
    for path in _folders(place):
        path.chmod(0o500)


def writable(place: Place) -> None:
    for path in _folders(place):
        path.chmod(0o755)


def move(place: Place) -> None:
    if place.run.exists():
        place.run.rename(place.folder / AWAY)


def move_back(place: Place) -> None:
    if (place.folder / AWAY).exists():
        shutil.rmtree(place.run, ignore_errors=True)
        (place.folder / AWAY).rename(place.run)


def delete(place: Place) -> None:
    shutil.rmtree(place.run, ignore_errors=True)


def flip(path: Path, rng: random.Random) -> None:
    """One bit of a file."""
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


def damaged_checkpoint(place: Place) -> None:
    """A bit, or the end, of one file of the newest checkpoint; or the file itself."""
    files = sorted(place.checkpoint())
    if not files:
        return
    path, how = place.rng.choice(files), place.rng.choice(("flip", "flip", "cut", "zeros", "remove"))
    if how == "flip":
        flip(path, place.rng)
    elif how == "remove":
        path.unlink()
    else:
        size = path.stat().st_size
        kept = place.rng.randrange(max(1, size))
        os.truncate(path, kept)
        if how == "zeros":  # the length reached the disk, the content did not
            os.truncate(path, size)


def torn_lines(place: Place) -> None:
    """What was appended since the newest checkpoint is cut, or holds zeros, or another's text, as after a power cut."""
    for path, safe in place.logs().items():
        size = path.stat().st_size
        if size <= safe:
            continue
        kept, how = place.rng.randrange(safe, size + 1), place.rng.choice(("cut", "zeros", "noise"))
        os.truncate(path, kept)
        if how == "zeros":
            os.truncate(path, size)
        elif how == "noise":
            with path.open("ab") as stream:
                stream.write(place.rng.randbytes(size - kept))


def damaged_settings(place: Place) -> None:
    """A bit of what the run says of itself."""
    files = [path for name in ("config.toml", "tokenizer.json") if (path := place.run / name).is_file()]
    if files:
        flip(place.rng.choice(files), place.rng)


def damaged_cache(place: Place) -> None:
    """A bit of the tokens that are kept."""
    files = sorted(path for path in (place.folder / "cache").rglob("*") if path.is_file() and path.stat().st_size)
    if files:
        flip(place.rng.choice(files), place.rng)


FULL = Fault("disk full", fill, mend=make_room)
QUOTA = Fault("files limited", inside=small_files)
FAULTS = (
    Fault("SIGKILL", kill, names=True),
    Fault("SIGKILL of all", kill_all, processes=(2,)),
    Fault("SIGTERM", send(signal.SIGTERM), keeps_all=True),
    Fault("SIGHUP", send(signal.SIGHUP), keeps_all=True),
    Fault("SIGINT", send(signal.SIGINT), keeps_all=True),
    Fault("SIGINT twice", send(signal.SIGINT, 2)),
    FULL,
    QUOTA,
    Fault("no file can be opened", inside=few_files, processes=(1,)),
    Fault("no memory", inside=little_memory, processes=(1,)),
    Fault("folder read-only", read_only, mend=writable),
    Fault("folder moved", move, mend=move_back),
    Fault("folder deleted", delete),
    Fault("clock jumps", inside=clock, goes_on=True),
    Fault("times of files jump", kill, damage=old_files),
    Fault("process slow", slow, goes_on=True),
    Fault("process stalled", stall, processes=(2,), names=True),
    Fault("connection cut", inside=cut, processes=(2,), names=True),
    Fault("checkpoint damaged", kill, damage=damaged_checkpoint),
    Fault("lines torn", kill, damage=torn_lines),
    Fault("settings damaged", kill, damage=damaged_settings),
    Fault("kept tokens damaged", kill, damage=damaged_cache),
)
