"""A target given one input after another, and what came of each: read, refused in one line, or a finding."""

import mmap
import re
import resource
import struct
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz.targets.target import Read

from limpid.errors import LimpidError

ROUGH = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\udc80-\udcff]")
"""What no line of an error may hold."""
LONGEST_LINE = 2000
SECONDS = 5.0
"""Of the processor's time that one input may take; four times that of the clock's is called a hang."""
MEMORY = 1 << 30
"""Bytes of address space beyond what was held before."""
HEADER = struct.Struct("<QQQ")


@dataclass(frozen=True)
class Finding:
    """One kind of failure, and the smallest input that showed it."""

    what: str
    where: str
    data: bytes

    @property
    def kind(self) -> tuple[str, str]:
        return self.what.partition(":")[0], self.where


class Board:
    """What a process is doing, where its parent can see it when it has died: counts, and the input at hand."""

    def __init__(self, size: int = 1 << 22) -> None:
        self.memory = mmap.mmap(-1, size)

    def begin(self, data: bytes) -> None:
        count, refused, _ = HEADER.unpack_from(self.memory)
        HEADER.pack_into(self.memory, 0, count + 1, refused, len(data))
        self.memory[HEADER.size : HEADER.size + len(data)] = data

    def refused(self) -> None:
        count, refused, size = HEADER.unpack_from(self.memory)
        HEADER.pack_into(self.memory, 0, count, refused + 1, size)

    @property
    def counts(self) -> tuple[int, int]:
        """Inputs begun, and how many were refused in one line."""
        count, refused, _ = HEADER.unpack_from(self.memory)
        return count, refused

    @property
    def data(self) -> bytes:
        size = HEADER.unpack_from(self.memory)[2]
        return bytes(self.memory[HEADER.size : HEADER.size + size])


def limit_memory() -> None:
    """Asking for much more than a small file can hold is an error from here on."""
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def outcome(read: Read, data: bytes) -> Finding | bool:
    """Whether an input was refused as it should be; or what is wrong."""
    began = time.process_time()
    try:
        read(data)
    except LimpidError as error:
        said = str(error)
        if rough := ROUGH.search(said):
            return Finding(f"message holds {rough[0]!a}: {said[:200]!a}", _place(error), data)
        if not said or len(said) > LONGEST_LINE:
            return Finding(f"message of {len(said)} characters", _place(error), data)
        refused = True
    except Exception as error:
        return Finding(f"{type(error).__name__}: {str(error)[:200]!a}", _place(error), data)
    except BaseException as error:  # a panic in Rust is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return Finding(f"{type(error).__name__}: {str(error)[:200]!a}", _place(error), data)
    else:
        refused = False
    seconds = time.process_time() - began
    return Finding(f"slow: {seconds:.1f} s", "", data) if seconds > SECONDS else refused


def _place(error: BaseException) -> str:
    """The innermost line of limpid that it passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/limpid/" in frame.filename]
    if not frames:
        return "outside"
    return f"{Path(frames[-1].filename).as_posix().rpartition('/limpid/')[2]}:{frames[-1].lineno}"
