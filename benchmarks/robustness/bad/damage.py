"""Ways in which files go wrong: on the disk, in the archive, in the document."""

import json
import math
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[Path], None]

DISK = (
    "half",
    "cut1",
    "empty",
    "noise",
    "zeros",
    "folder",
    "loop",
    "dangling",
    "fifo",
    "sealed",
    "gone",
    "prose",
    "endless",
)
"""Each makes any file with a format unreadable."""
SLIGHT = ("flip", "flip-head", "twice", "tail", "nul", "utf16", "bom", "crlf")
"""Each may leave something readable."""

STRANGE: dict[str, Any] = {
    "null": None, "true": True, "minus": -1, "zero": 0, "half": 0.5, "huge": 10**30, "vast": 1e308, "nan": math.nan,
    "inf": math.inf, "empty": "", "word": "nonsense", "digits": "12", "list": [], "object": {}, "nested": [[[]]],
    "long": "x" * 100_000, "escape": "\x1b[2J\x07", "surrogate": "\udfff",
}  # fmt: skip
"""Values that stand for a mistake in a document's field."""


def _replace(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


def damage(how: str, seed: int = 0) -> Damage:
    """What does this to a file."""
    rng = random.Random(f"{how} {seed}")

    def on_disk(path: Path) -> None:
        if how == "folder":
            _replace(path, lambda p: p.mkdir())
        elif how == "loop":
            _replace(path, lambda p: p.symlink_to(p.name))
        elif how == "dangling":
            _replace(path, lambda p: p.symlink_to("nowhere"))
        elif how == "endless":
            _replace(path, lambda p: p.symlink_to("/dev/zero"))
        elif how == "fifo":
            _replace(path, os.mkfifo)
        elif how == "sealed":
            path.chmod(0)
        elif how == "gone":
            path.unlink()
        else:
            path.write_bytes(content(path.read_bytes()))

    def content(old: bytes) -> bytes:
        if how in ("flip", "flip-head"):
            at = rng.randrange(min(len(old), 64) if how == "flip-head" else len(old))
            return old[:at] + bytes([old[at] ^ (1 << rng.randrange(8))]) + old[at + 1 :]
        middle = len(old) // 2
        return {
            "half": lambda: old[:middle],
            "cut1": lambda: old.rstrip()[:-1],
            "empty": lambda: b"",
            "noise": lambda: rng.randbytes(len(old)),
            "zeros": lambda: bytes(len(old)),
            "prose": lambda: b"This is not what stood here before.\n" * 3,
            "twice": lambda: old + old,
            "tail": lambda: old + b"tail of another file\n",
            "nul": lambda: old[:middle] + b"\0" + old[middle:],
            "utf16": lambda: old.decode("latin-1").encode("utf-16"),
            "bom": lambda: b"\xef\xbb\xbf" + old,
            "crlf": lambda: old.replace(b"\n", b"\r\n"),
        }[how]()

    return on_disk


def field(*keys: str | int, value: Any = None, drop: bool = False) -> Damage:
    """A JSON document's field set to something else, or left out."""

    def change(path: Path) -> None:
        document = json.loads(path.read_text())
        place = document
        for key in keys[:-1]:
            place = place[key]
        if drop:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value
        path.write_text(json.dumps(document))

    return change


def instead(text: str | bytes) -> Damage:
    """Other content."""
    return lambda path: void(path.write_bytes(text.encode() if isinstance(text, str) else text))


def void(_: object) -> None:
    """Nothing of what was returned."""


def header(change: Callable[[dict[str, Any]], object]) -> Damage:
    """A safetensors file with its header changed and its data as they were."""

    def on_disk(path: Path) -> None:
        old = path.read_bytes()
        (size,) = struct.unpack("<Q", old[:8])
        entries = json.loads(old[8 : 8 + size])
        change(entries)
        new = json.dumps(entries).encode()
        path.write_bytes(struct.pack("<Q", len(new)) + new + old[8 + size :])

    return on_disk


def fill(value: float) -> Damage:
    """Every weight of the first tensor of a float32 safetensors file."""

    def on_disk(path: Path) -> None:
        old = path.read_bytes()
        (size,) = struct.unpack("<Q", old[:8])
        entries = json.loads(old[8 : 8 + size])
        entry = next(e for name, e in sorted(entries.items()) if name != "__metadata__" and e["dtype"] == "F32")
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        path.write_bytes(old[:begin] + struct.pack("<f", value) * ((end - begin) // 4) + old[end:])

    return on_disk
