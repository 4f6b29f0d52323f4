"""Tokens that were made once: kept under the hash of all that they depend on, found again without reading the text."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from limpid.errors import DataError
from limpid.files import cache_folder, explained, folder_written_atomically, write_atomically
from limpid.manifest import write_manifest

ABANDONED_AFTER = 24 * 3600.0  # seconds
UNFINISHED = re.compile(r"new-[0-9a-f]{32}|\.new-[0-9a-f]{32}\.(writing|retired)")
"""Names that only `Cache.filled` gives: nothing else in the folder is removed."""


def hash_of(*parts: Any) -> str:
    """32 hexadecimal digits that change with every part."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


class Cache:
    """Folders of tokens by fingerprint, and what leads to them: $LIMPID_CACHE, else limpid in the user's cache."""

    def __init__(self) -> None:
        self.damage = ""
        """What was wrong with the tokens that were looked for, if they were there and not whole."""
        self.path = cache_folder()
        try:
            for folder in (self._tokens, self._index):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"cannot write to the cache {self.path} ({error.strerror}): set LIMPID_CACHE to a folder that can be "
                "written"
            ) from error

    @property
    def _tokens(self) -> Path:
        return self.path / "tokens"

    @property
    def _index(self) -> Path:
        return self.path / "index"

    def folder(self, fingerprint: str) -> Path:
        """Where tokens with this fingerprint lie, if they do."""
        return self._tokens / fingerprint

    @contextmanager
    def filled(self, fingerprint: str, is_whole: Callable[[], bool]) -> Iterator[Path]:
        """A folder to fill, which becomes `folder(fingerprint)`; of several processes that fill it, one wins.

        What was there before gives way only when it is not whole.
        """
        self._remove_abandoned()
        own = self._tokens / f"new-{uuid.uuid4().hex}"
        with folder_written_atomically(own) as temporary:
            yield temporary
            write_manifest(temporary)
        target = self.folder(fingerprint)
        with explained(f"cannot keep the tokens in {target}", own):
            try:
                own.rename(target)
            except OSError:  # a rename cannot replace a full folder
                if not target.is_dir():
                    raise
                if not is_whole():  # else another process was first, with the same tokens
                    retired = self._tokens / f"new-{uuid.uuid4().hex}"
                    target.rename(retired)
                    own.rename(target)
                    shutil.rmtree(retired, ignore_errors=True)
        shutil.rmtree(own, ignore_errors=True)

    def recall(self, key: str) -> dict[str, Any] | None:
        """What was remembered under `key`, or None."""
        try:
            entry = json.loads((self._index / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return entry if isinstance(entry, dict) else None

    def remember(self, key: str, entry: dict[str, Any]) -> None:
        """Let `key` lead to `entry`."""
        file = self._index / f"{key}.json"
        own = file.with_name(f"{key}.{uuid.uuid4().hex}")  # processes must not write to one temporary name
        write_atomically(own, json.dumps(entry).encode())
        own.replace(file)

    def _remove_abandoned(self) -> None:
        """Delete what processes that were killed left half written."""
        for left in self._tokens.iterdir():
            if UNFINISHED.fullmatch(left.name) and time.time() - _changed(left) > ABANDONED_AFTER:
                shutil.rmtree(left, ignore_errors=True)


def _changed(path: Path) -> float:
    """When it changed last; now, if another process has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
