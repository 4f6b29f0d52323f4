"""A verified step's document on the disk beside the step, for as long as step and program are the same."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from limpid.errors import CheckpointError
from limpid.files import MALFORMED, write_atomically

PACKAGE = Path(__file__).parent.parent
CODE = ("maths", "tracing", "objectives", "quantities.py")
"""What a document depends on beside the record."""


def read(record: Path) -> Any:
    """The document of a recorded step, as JSON; None where there is none that is up to date."""
    try:
        found = json.loads(_file(record).read_text(encoding="utf-8"))
        return found["document"] if found["key"] == key(record) else None
    except (OSError, *MALFORMED):
        return None


def write(record: Path, document: Any) -> None:
    """Keep a document; a folder that cannot be written to keeps none, nor does one where the name is taken."""
    file = _file(record)
    text = json.dumps({"key": key(record), "document": document}, ensure_ascii=False)
    try:
        if not file.exists() or file.read_bytes().startswith(b'{"key": "'):
            write_atomically(file, text.encode())
    except (OSError, CheckpointError):
        return


def _file(record: Path) -> Path:
    return record.with_suffix(".trace.json")


def stamp(record: Path) -> str:
    """Changes with the recorded step: a file is replaced whole, with another time."""
    state = record.stat()
    return f"{state.st_size}-{state.st_mtime_ns}"


def key(record: Path) -> str:
    """Changes with the record and with the program."""
    return f"{stamp(record)} {program()}"


@cache
def program() -> str:
    """Changes with every line of the mathematics and of the comparison."""
    digest = hashlib.sha256()
    for name in CODE:
        place = PACKAGE / name
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(file.read_bytes())
    return digest.hexdigest()
