"""Files and folders that are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from limpid.errors import CheckpointError, ConfigError, LimpidError

LONGEST_NAME = 255
"""Bytes of a file's name on most systems; longer ones are shown cut."""
LONGEST_STREAM = 1 << 26
"""Bytes read at most of what is no file: a device may never end."""
WRITER_SECONDS = 5.0
"""How long a pipe waits for its other end: the processes of a pipeline start within that, if any does."""
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading a document comes to that is not of the form expected: it is no JSON, or holds other things."""


def parse_json(text: str | bytes) -> Any:
    """What JSON says; raises ValueError for what is none, or nested deeper than Python reads."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def cache_folder() -> Path:
    """$LIMPID_CACHE, else limpid in the user's cache.

    Raises  ConfigError for a user without a home, as inside of containers
    """
    home = os.environ.get("LIMPID_CACHE")
    platform = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(home) if home else Path(platform) / "limpid"
    try:
        return folder.expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"the cache {folder} begins with a home that does not exist: set LIMPID_CACHE to a folder that can be "
            "written"
        ) from error


def user_path(what: str | Path) -> Path:
    """The path that a user named, with ~ as a home; something may lie there or not.

    Raises  ConfigError for what can be no path, and for where the system refuses to look
    """
    if not str(what):
        raise ConfigError("'' is no path: name a file or folder")
    try:
        path = Path(what).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link that leads to itself: nothing lies there
            return path
        advice = ADVICE.get(error.errno or 0, "give another path")
        raise ConfigError(f"cannot look at {_short(what)}: {error.strerror}; {advice}") from error
    except RuntimeError as error:
        raise ConfigError(f"{_short(what)} begins with a home that does not exist: write the path out") from error
    except ValueError as error:  # NUL, or half of a surrogate pair
        raise ConfigError(f"{_short(what)} can be no path ({one_line(error)}): give another") from error
    return path


def standard_input() -> TextIO:
    """Standard input.

    Raises  ConfigError when the process was started without one
    """
    if sys.stdin is None:
        raise ConfigError("standard input is closed: lead a file into it (< FILE), or name a file")
    return sys.stdin


def standard_output() -> TextIO:
    """The same of standard output."""
    if sys.stdout is None:
        raise ConfigError("standard output is closed: lead it into a file (> FILE), or name one with --output")
    return sys.stdout


def open_to_read(path: Path, name: str) -> BinaryIO:
    """A file's bytes, or those of a pipe that somebody writes to.

    Raises  OSError as opening does; ConfigError for a pipe to which nobody comes to write
    """
    if not path.is_fifo():
        return path.open("rb")
    opened: list[BinaryIO] = []
    opening = threading.Thread(target=lambda: opened.append(path.open("rb")), daemon=True)
    opening.start()  # it returns when somebody opens the other end
    opening.join(WRITER_SECONDS)
    if not opened:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        raise ConfigError(
            f"{name} is a pipe, and nobody came to write to it for {WRITER_SECONDS:g} seconds: start what writes first"
        )
    return opened[0]


def read_whole(path: Path) -> bytes:
    """All that a file, a pipe or a device holds.

    Raises  OSError as reading does; ConfigError for a pipe that nobody writes to, and for what comes to no end
    """
    with open_to_read(path, str(path)) as stream:
        if path.is_file():
            return stream.read()
        content = stream.read(LONGEST_STREAM + 1)
    if len(content) > LONGEST_STREAM:
        raise ConfigError(f"{path} gave {LONGEST_STREAM:,} bytes and came to no end: give a file")
    return content


def _short(what: str | Path) -> str:
    return str(what) if len(str(what)) <= LONGEST_NAME else f"{str(what)[:60]}…"


def write_atomically(file: Path, content: bytes) -> None:
    """Replace `file` by `content`: after a crash it is the old one or the new one, never a part."""
    with file_written_atomically(file) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def file_written_atomically(file: Path, parents: bool = True) -> Iterator[Path]:
    """A temporary file to write, which becomes `file` when the block ends without an error.

    parents  whether more than the folder that it lies in is made where it is missing
    """
    temporary = file.with_name(f".{file.name}.writing")
    with explained(f"cannot write {file}", temporary):
        file.parent.mkdir(parents=parents, exist_ok=True)
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        _allow(temporary, mode)
        _sync_file(temporary)
        temporary.replace(file)
        sync_folder(file.parent)


@contextlib.contextmanager
def folder_written_atomically(
    folder: Path, ours: Collection[str] | None = None, parents: bool = True
) -> Iterator[Path]:
    """A temporary folder to fill, which becomes `folder` when the block ends without an error.

    Of a folder that was there before, everything whose name is not in `ours` is kept; None keeps nothing.
    parents  whether more than the folder that it lies in is made where it is missing
    """
    temporary = folder.with_name(f".{folder.name}.writing")
    retired = folder.with_name(f".{folder.name}.retired")
    with explained(f"cannot write {folder}", temporary):
        shutil.rmtree(temporary, ignore_errors=True)
        if retired.exists() and not folder.exists():  # the last writer was killed between the two renames
            retired.rename(folder)
        folder.parent.mkdir(parents=parents, exist_ok=True)
        temporary.mkdir()
        yield temporary
        if ours is not None and folder.is_dir():
            _keep_others(folder, temporary, ours)
        for file in temporary.iterdir():
            if file.is_file():
                _allow(file, temporary.stat().st_mode & 0o666)
                _sync_file(file)
        sync_folder(temporary)
        if folder.exists():  # a rename cannot replace a full folder
            shutil.rmtree(retired, ignore_errors=True)
            folder.rename(retired)
            temporary.rename(folder)
            shutil.rmtree(retired, ignore_errors=True)
        else:
            temporary.rename(folder)
        sync_folder(folder.parent)


def _keep_others(folder: Path, new: Path, ours: Collection[str]) -> None:
    """Give the new folder what others put into the old one."""
    for entry in folder.iterdir():
        if entry.name in ours or (new / entry.name).exists():
            continue
        if entry.is_dir():
            shutil.copytree(entry, new / entry.name, symlinks=True)
        else:
            shutil.copy2(entry, new / entry.name, follow_symlinks=False)


def _allow(file: Path, mode: int) -> None:
    """Give a file the rights that the user's umask leaves new ones: safetensors writes its own for the owner alone."""
    if stat.S_IMODE(file.stat().st_mode) != stat.S_IMODE(mode):
        file.chmod(stat.S_IMODE(mode))


def _sync_file(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames in this folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LineFile:
    """A file that grows by whole lines: one that could not be written in full is taken back."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with explained(f"cannot write {file}"):
            self._stream = file.open("ab", buffering=0)

    def write(self, *lines: str) -> None:
        """Append lines, all of them or none."""
        content = memoryview("".join(line + "\n" for line in lines).encode())
        before = os.fstat(self._stream.fileno()).st_size
        with explained(f"cannot write {self.file}"):
            try:
                while content:
                    content = content[self._stream.write(content) :]
            except OSError:
                with contextlib.suppress(OSError):  # of a file that cannot be cut, such as a device
                    self._stream.truncate(before)
                raise

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        with explained(f"cannot write {self.file}"):
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """End the file; nothing is left to write."""
        self._stream.close()


FULL = "what was saved before is intact; make room and go on"
FORBIDDEN = "nothing there was changed; get the rights (ls -ld shows them), or choose another place"
IN_THE_WAY = "something of that name is in the way: choose another name or place"
ADVICE = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EFBIG: "what was saved before is intact; allow larger files (ulimit -f) and go on",
    errno.EACCES: FORBIDDEN,
    errno.EPERM: FORBIDDEN,
    errno.EROFS: "choose a place that can be written",
    errno.ENOENT: "its folder is gone: it was moved or deleted",
    errno.ENOTDIR: IN_THE_WAY,
    errno.EISDIR: IN_THE_WAY,
    errno.EEXIST: IN_THE_WAY,
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "close other programs or raise the limit of open files (ulimit -n)",
}
"""The way out of a refusal, by its number."""
OTHERWISE = "what was saved before is intact; see to the disk and go on"


@contextlib.contextmanager
def explained(what: str, leftover: Path | None = None) -> Iterator[None]:
    """Turn a refusal of the file system into one line, and remove what was half written."""
    try:
        yield
    except BaseException as error:
        if leftover is not None:
            _remove(leftover)
        number = _refusal(error)
        if number is None:
            raise
        advice = ADVICE.get(number, OTHERWISE)
        raise CheckpointError(f"{what}: {os.strerror(number) if number else one_line(error)}; {advice}") from error


def _refusal(error: BaseException) -> int | None:
    """The system's number of a refusal, 0 when it has none; None for an error of another kind."""
    if isinstance(error, OSError):
        return error.errno or 0
    said = str(error)
    if "I/O error" in said and not isinstance(error, LimpidError):  # safetensors' own
        number = re.search(r"os error (\d+)", said)
        return int(number[1]) if number else 0
    return None


def _remove(leftover: Path) -> None:
    with contextlib.suppress(OSError):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks."""
    return " ".join(str(error).split())


def is_number(name: str) -> bool:
    """Whether a name is a number in ASCII digits; str.isdigit takes ² for one."""
    return name.isascii() and name.isdigit()
