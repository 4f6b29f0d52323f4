"""What can be read only once: judged and kept while it comes, so that it can be read again."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from limpid.data.decoding import READ_SIZE
from limpid.errors import DataError


class Spool:
    """The bytes of a stream; they lie in a file, which goes with this object."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.name = name
        self._read = getattr(stream, "read1", stream.read)  # what is there already, without a wait for more
        self._kept, self._ended = 0, False
        with self._kept_or_explained():
            self._file = tempfile.NamedTemporaryFile(prefix="limpid-")  # noqa: SIM115 - it closes with this object

    def blocks(self) -> Iterator[bytes]:
        """All bytes from the first: those that were read before, then those that come.

        Raises  DataError when the disk cannot hold them
        """
        place = 0
        while not (self._ended and place == self._kept):
            if place < self._kept:
                self._file.seek(place)
                block = self._file.read(min(READ_SIZE, self._kept - place))
            else:
                block = self._next()
            place += len(block)
            yield block

    def _next(self) -> bytes:
        """What comes next, kept."""
        try:
            block: bytes = self._read(READ_SIZE)
        except OSError as error:
            raise DataError(f"cannot read {self.name}: {error.strerror}; lead a file into it, or name one") from error
        if not block:
            self._ended = True
            return block
        with self._kept_or_explained():
            self._file.seek(self._kept)
            self._file.write(block)
            self._file.flush()
        self._kept += len(block)
        return block

    @contextlib.contextmanager
    def _kept_or_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if hasattr(self, "_file"):
                with contextlib.suppress(OSError):  # what waits to be written does not fit either
                    self._file.close()
            raise DataError(
                f"cannot keep {self.name} in {tempfile.gettempdir()}: {error.strerror} after {self._kept:,} bytes; "
                "point TMPDIR at a folder with more room, or put the text into a file"
            ) from error
