"""What a reader has answered: one JSON file of their own, a line in it for each time that an exercise was tried.

The file holds what happened and nothing that follows from it: when something is due is computed (`review`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from limpid.errors import CheckpointError
from limpid.files import MALFORMED, explained, parse_json, user_path, write_atomically

FORMAT = 1
WAIT = 5.0
"""Seconds that one process waits for another that writes: it writes for milliseconds."""


@dataclass(frozen=True)
class Sitting:
    """One time that an exercise was tried, with one draw of numbers."""

    exercise: str
    how: str
    """What to type after `limpid learn` to have the same numbers again."""
    at: str
    """When it ended: ISO 8601, UTC."""
    tries: tuple[str, ...]
    """What each answer was: right, rounded, wrong, or the slip's note."""
    hints: int = 0
    """How many were asked for."""
    gave_up: bool = False
    """Whether the solution was asked for."""

    @property
    def right(self) -> bool:
        return "right" in self.tries

    @property
    def at_once(self) -> bool:
        """Whether the first answer was right, and no hint was needed."""
        return self.right and not self.hints and set(self.tries) <= {"right", "rounded"}

    @property
    def when(self) -> datetime:
        return datetime.fromisoformat(self.at)


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def file() -> Path:
    """$LIMPID_LEARN, else limpid/learn.json among the user's data; behind a link what it leads to.

    Raises  CheckpointError where something lies there that is no file
    """
    platform = os.environ.get("XDG_DATA_HOME", "")  # relative ones are to be ignored: XDG base directories 0.8
    folder = platform if os.path.isabs(platform) else "~/.local/share"
    path = Path(os.path.realpath(user_path(os.environ.get("LIMPID_LEARN") or f"{folder}/limpid/learn.json")))
    if not path.is_file() and (path.exists() or path.is_symlink()):
        raise CheckpointError(f"{path} is no file: name one by LIMPID_LEARN")
    return path


def sittings() -> tuple[Sitting, ...]:
    """All that was answered, in the order of writing; nothing where there is no file yet.

    Raises  CheckpointError in one line for a file that is damaged, not ours, or written by a later limpid
    """
    return tuple(_sitting(one) for one in _document(file())["sittings"])


def record(sitting: Sitting) -> None:
    """Add a sitting; whoever writes at the same time waits.

    Raises  CheckpointError where the file cannot be written, or holds something else; nothing is changed then
    """
    path = file()
    with _alone(path):
        document = _document(path)
        lines = [json.dumps(one, ensure_ascii=False) for one in (*document["sittings"], asdict(sitting))]
        head = json.dumps({key: value for key, value in document.items() if key != "sittings"}, ensure_ascii=False)
        text = f'{head[:-1]}, "sittings": [\n' + ",\n".join(lines) + "\n]}\n"
        write_atomically(path, text.encode(errors="surrogatepass"))


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Be the one process that writes. The file that is locked stays: removing it would let two hold two."""
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name(f".{path.name}.lock"))
    with explained(f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=WAIT)
        except Timeout:
            raise CheckpointError(f"another process has been writing {path} for {WAIT:g} s: end it, and answer again"
                                  ) from None  # fmt: skip
    try:
        yield
    finally:
        lock.release()


def _document(path: Path) -> dict[str, Any]:
    """What the file holds, checked to the last entry."""
    with explained(f"cannot read {path}"):
        if not path.exists():
            return {"limpid": "learn", "format": FORMAT, "sittings": []}
        content = path.read_bytes()
    try:
        document = parse_json(content)
    except ValueError as error:
        raise _unusable(path, f"is damaged ({error})") from None
    if not isinstance(document, dict) or document.get("limpid") != "learn":
        raise _unusable(path, "is no record of limpid learn")
    if document.get("format") != FORMAT:
        raise _unusable(path, f"has the format {document.get('format')!r}, and this limpid reads {FORMAT}")
    try:
        for one in document["sittings"]:
            _sitting(one)
    except MALFORMED as error:
        raise _unusable(path, f"is damaged (a sitting is not whole: {error})") from None
    return document


def _sitting(entry: dict[str, Any]) -> Sitting:
    sitting = Sitting(**{**entry, "tries": tuple(entry["tries"])})
    words: Sequence[Any] = (sitting.exercise, sitting.how, sitting.at, *sitting.tries)
    if not all(isinstance(word, str) for word in words) or isinstance(entry["tries"], str):
        raise ValueError("a word is missing")
    if not isinstance(sitting.hints, int) or not isinstance(sitting.gave_up, bool):
        raise ValueError("a number is missing")
    if sitting.when.utcoffset() is None:
        raise ValueError(f"{sitting.at} names no time zone")
    return sitting


def _unusable(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} {what}: move it away to begin anew, or name another file by LIMPID_LEARN")
