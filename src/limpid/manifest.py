"""A folder's manifest: size and SHA-256 of every file, written with them and checked when one of them is read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


def write_manifest(folder: Path) -> None:
    """Write down what the files of a folder are now; `sha256sum` gives the same digits."""
    files = {file.name: _state(file) for file in sorted(folder.iterdir()) if file.is_file()}
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")


def damage(file: Path) -> str | None:
    """What is wrong with a file, by the manifest beside it; None when it is as it was written.

    Where there is no manifest, as in older folders, only a file that is missing is.
    Raises  OSError when the system refuses to read it just now
    """
    if not file.is_file():
        return f"{file} is missing"
    beside = file.with_name(MANIFEST)
    if not beside.is_file():
        return None
    try:
        written = _read(beside)[file.name]
        size, digest = int(written["bytes"]), str(written["sha256"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return f"{beside} is damaged: it holds no size and hash of {file.name}"
    if (there := file.stat().st_size) != size:
        return f"{file} is damaged: it has {there:,} bytes, and {size:,} were written"
    if (found := sha256(file)) != digest:
        return f"{file} is damaged: its SHA-256 is {found[:12]}…, and {digest[:12]}… was written"
    return None


def damage_within(folder: Path) -> str | None:
    """What is wrong with the first file of a folder that is not as its manifest says; None when all of them are.

    Raises  OSError when the system refuses to read one just now
    """
    try:
        names = [*_read(folder / MANIFEST)]
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, RecursionError):
        return f"{folder / MANIFEST} is damaged"
    return next((wrong for name in names if (wrong := damage(folder / name))), None)


def sha256(file: Path) -> str:
    """The hash of a file's content, hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _state(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": sha256(file)}


def _read(manifest: Path) -> dict[str, dict[str, Any]]:
    files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    if not isinstance(files, dict):
        raise TypeError(files)
    return files
