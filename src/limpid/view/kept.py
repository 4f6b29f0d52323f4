"""What was made of a recorded step, in a folder beside it: made once, and used for as long as step and program are the
same."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np
from jaxtyping import UInt8

from limpid.errors import CheckpointError
from limpid.files import MALFORMED, file_written_atomically, write_atomically
from limpid.maths.operation import Array
from limpid.tracing.cache import program, stamp

OWN = re.compile(r"[0-9a-f]{32}\.[a-z.]{1,20}")
"""Names that `Kept.file` gives."""
MAKING = [Lock() for _ in range(16)]
"""One of them is held while something is made."""
Bytes = UInt8[np.ndarray, " byte"]


@dataclass(frozen=True)
class Kept:
    """The folder of one recorded step. One that cannot be written to keeps nothing."""

    record: Path

    @property
    def folder(self) -> Path:
        """Beside the step, so that it moves and is deleted with it."""
        return self.record.with_suffix(".view")

    @property
    def stamp(self) -> str:
        """Changes with the recorded step."""
        return stamp(self.record)

    def key(self) -> str:
        """Changes with the recorded step and with the program."""
        return f"limpid view {self.stamp} {program()} {_viewer()}"

    def file(self, what: str, ending: str) -> Path:
        """Where something is kept: a name of its own, whatever it is called."""
        return self.folder / f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.{ending}"

    def read(self, file: Path) -> bytes | None:
        """What was kept under the key of now."""
        try:
            head, _, content = file.read_bytes().partition(b"\n")
            return content if head.decode() == self.key() else None
        except (OSError, *MALFORMED):
            return None

    def mapped(self, file: Path) -> Bytes | None:
        """The same, left on the disk."""
        try:
            with file.open("rb") as stream:
                if stream.readline(4096).decode().rstrip("\n") != self.key():
                    return None
                return np.memmap(str(file), np.uint8, "r", stream.tell())
        except (OSError, *MALFORMED):
            return None

    def write(self, file: Path, content: bytes) -> None:
        """Keep something under the key of now."""
        try:
            self._begin()
            write_atomically(file, self.key().encode() + b"\n" + content)
        except (OSError, CheckpointError):
            return

    def _begin(self) -> None:
        """Remove what was kept of a step that is another by now, or by another program."""
        key = self.folder / "key"
        with contextlib.suppress(OSError, *MALFORMED):
            if key.read_text(encoding="utf-8") == self.key():
                return
        for file in self.folder.glob("*"):
            if OWN.fullmatch(file.name):
                file.unlink(missing_ok=True)
        write_atomically(key, self.key().encode())

    def arrays(self, name: str) -> dict[str, Array] | None:
        """Arrays of float64 that were kept under this name, left on the disk; None where there are none of now."""
        file = self.file(name, "redone")
        try:
            with file.open("rb") as stream:
                if stream.readline(4096).decode().rstrip("\n") != self.key():
                    return None
                shape = tuple(int(size) for size in stream.readline(4096).split())
                at = stream.tell()
            at += -at % 8
            size = int(np.prod(shape, dtype=np.int64)) * 8
            return {
                kind: np.memmap(str(file), np.float64, "r", at + place * size, shape)
                for place, kind in enumerate(("exact", "bound"))
            }
        except (OSError, *MALFORMED):
            return None

    def write_arrays(self, name: str, exact: Array, bound: Array) -> None:
        """Keep two arrays of one shape."""
        head = f"{self.key()}\n{' '.join(map(str, exact.shape))}\n".encode()
        head += b"\0" * (-len(head) % 8)
        try:
            self._begin()
            with file_written_atomically(self.file(name, "redone")) as temporary, temporary.open("wb") as stream:
                stream.write(head)
                for array in (exact, np.broadcast_to(bound, exact.shape)):
                    stream.write(np.ascontiguousarray(array, np.float64).tobytes())
        except (OSError, CheckpointError):
            return

    def made(self, what: str, ending: str, make: Callable[[], bytes]) -> bytes:
        """What was kept, or is made now and kept."""
        file = self.file(what, ending)
        found = self.read(file)
        if found is None:
            found = make()
            self.write(file, found)
        return found

    def made_mapped(self, what: str, ending: str, make: Callable[[], bytes]) -> Bytes:
        """The same, left on the disk: nothing is read but what is looked at."""
        file = self.file(what, ending)
        found = self.mapped(file)
        if found is not None:
            return found
        with MAKING[hash(file) % len(MAKING)]:  # a page asks for many tiles at once
            found = self.mapped(file)
            if found is None:
                made = make()
                self.write(file, made)
                found = np.frombuffer(made, np.uint8)
            return found


@cache
def _viewer() -> str:
    """Changes with every line that decides what is kept, and how."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
