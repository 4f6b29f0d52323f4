"""Sizes and hashes (SHA-256) of files, written with them and checked when they are read.

A folder has a manifest of its files. A safetensors file that stands alone carries its hash in its metadata.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

from limpid.files import MALFORMED

MANIFEST = "manifest.json"
UNSEALED = {"sha256": 64 * "0"}
"""Metadata of a safetensors file that is to be sealed."""
SEAL = rb'(?s)"sha256"\s*:\s*"(.{64})"|".{6}"\s*:\s*"([0-9a-f]{64})"'
"""Its name or its digits may be damaged: a damaged seal is not a missing one."""


def write_manifest(folder: Path, names: Collection[str] | None = None) -> None:
    """Write down what the files of a folder, or those of some names, are now; `sha256sum` gives the same digits."""
    files = {
        file.name: _state(file)
        for file in sorted(folder.iterdir())
        if file.is_file() and (names is None or file.name in names)
    }
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
    except MALFORMED:
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
    except MALFORMED:
        return f"{folder / MANIFEST} is damaged"
    return next((wrong for name in names if (wrong := damage(folder / name))), None)


def sha256(file: Path) -> str:
    """The hash of a file's content, hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def seal(file: Path) -> None:
    """Write into a safetensors file with the metadata UNSEALED its hash, as it is with zeros in that place."""
    with file.open("r+b") as stream:
        found = _seal(stream)
        if found is None:
            raise ValueError(f"{file} has no place for a hash")
        digest = _hash_unsealed(stream, found[0])
        stream.seek(found[0])
        stream.write(digest.encode())


def seal_damage(file: Path) -> str | None:
    """What is wrong with a sealed safetensors file; None when it is as it was written, or was never sealed.

    Raises  OSError when the system refuses to read it just now
    """
    with file.open("rb") as stream:
        found = _seal(stream)
        digest = "" if found is None else _hash_unsealed(stream, found[0])
    if found is None or digest == found[1]:
        return None
    return f"{file} is damaged: its SHA-256 is {digest[:12]}…, and {found[1][:12]}… was written"


def _seal(stream: BinaryIO) -> tuple[int, str] | None:
    """Where the hash in a safetensors file's header begins, and what it is."""
    length = int.from_bytes(stream.read(8), "little")
    header = stream.read(min(length, os.fstat(stream.fileno()).st_size))
    found = re.search(SEAL, header)
    if found is None:
        return None
    place = 1 if found[1] is not None else 2
    return 8 + found.start(place), found[place].decode(errors="replace")


def _hash_unsealed(stream: BinaryIO, at: int) -> str:
    """The hash of a file with zeros in place of the hash at `at`."""
    stream.seek(0)
    digest = hashlib.sha256(stream.read(at) + bytes(UNSEALED["sha256"], "ascii"))
    stream.seek(at + len(UNSEALED["sha256"]))
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _state(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": sha256(file)}


def _read(manifest: Path) -> dict[str, dict[str, Any]]:
    files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    if not isinstance(files, dict):
        raise TypeError(files)
    return files
