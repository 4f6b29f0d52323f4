"""Parts of arrays on their way to the page: named as `limpid explain` names entries, sent as safetensors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Shaped

from limpid.maths.operation import Array
from limpid.view.answers import Refused

MOST = 1 << 18
"""Entries of one slice: a megabyte of float32."""
WORDS = {"<f4": "F32", "<f8": "F64", "<i4": "I32", "|u1": "U8"}
"""Formats that are sent, as safetensors spells them."""
ENTRY = re.compile(r"(?P<name>[^\[\]]{1,300}?)\s*(?:\[(?P<index>[^\[\]]*)\])?")
PART = re.compile(r"(\d{1,18})|(\d{0,18}):(\d{0,18})")
SENT = {"f": "<f4", "i": "<i4", "u": "|u1", "b": "|u1"}


class Readable(Protocol):
    """An array of which parts are read: as it lies on the disk, or computed of such part by part."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its size along every axis."""

    def __getitem__(self, index: Any, /) -> Any:
        """A part, as an array."""


@dataclass(frozen=True)
class Asked:
    """What is asked of an array: a name, and leading indices or ranges of it."""

    name: str
    parts: tuple[tuple[int, int | None], ...]  # first and end of each axis; end None is one entry, which has no axis
    open_ends: tuple[bool, ...]  # where the end is the axis's own

    def of(self, shape: tuple[int, ...]) -> tuple[tuple[int | slice, ...], tuple[int, ...]]:
        """The index of the part in an array of this shape, and where it starts on every axis.

        Raises  Refused for what lies outside
        """
        if len(self.parts) > len(shape):
            raise Refused(f"{self.name} has shape {list(shape)}: {len(self.parts)} indices are too many")
        index: list[int | slice] = []
        for (first, end), is_open, size in zip(self.parts, self.open_ends, shape, strict=False):
            last = size if is_open else end
            if first >= max(size, 1) or (last is not None and not first <= last <= size):
                raise Refused(f"{self.name} has shape {list(shape)}: an index lies outside; they start at 0")
            index.append(first if last is None else slice(first, last))
        start = tuple(part if isinstance(part, int) else part.start for part in index)
        return tuple(index), (*start, *(0 for _ in shape[len(index) :]))

    def size(self, shape: tuple[int, ...]) -> int:
        """Entries of the part."""
        index, _ = self.of(shape)
        own = (part.stop - part.start for part in index if isinstance(part, slice))
        return math.prod((*own, *shape[len(index) :]))


def parsed(entry: str) -> Asked:
    """NAME, NAME[0, 1] or NAME[0, 1, 0:64, :].

    Raises  Refused for anything else
    """
    found = ENTRY.fullmatch(entry.strip())
    if found is None:
        raise Refused(f"{entry[:80]!r} names no part of an array: write NAME or NAME[0, 1, 0:64]")
    inside = found["index"]
    words = [word.strip() for word in inside.split(",")] if inside and inside.strip() else []
    parts: list[tuple[int, int | None]] = []
    opened = []
    for word in words:
        part = PART.fullmatch(word)
        if part is None:
            raise Refused(f"[{inside[:80]}] is no index: write integers or ranges with commas between, as in [0, 0:64]")
        single, first, end = part.groups()
        parts.append((int(single), None) if single is not None else (int(first or 0), int(end) if end else 0))
        opened.append(single is None and not end)
    return Asked(found["name"], tuple(parts), tuple(opened))


def part_of(array: Readable, asked: Asked) -> tuple[Array, tuple[int, ...]]:
    """The part of an array, of which nothing else is read, and where it starts.

    Raises  Refused where it is too large to send
    """
    shape = array.shape
    index, start = asked.of(shape)
    entries = asked.size(shape)
    if entries > MOST:
        raise Refused(f"{asked.name}: {entries:,} entries are asked for, at most {MOST:,} are sent: ask for tiles", 413)
    return np.asarray(array[index]), start


def sent(array: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """In a format that the page reads: bfloat16 and float16 become float32, which loses nothing."""
    if array.dtype == np.float64:
        return array
    kind = array.dtype.kind if array.dtype.kind in SENT else "f"  # bfloat16 is of no kind
    return array.astype(SENT[kind])


def safetensors(tensors: Mapping[str, Array], about: Mapping[str, Any]) -> bytes:
    """Arrays as one safetensors file: a length, a header of JSON that ends on a multiple of 8, the numbers.

    Values of `about` that are no text are written as JSON.
    """
    held = {name: np.ascontiguousarray(sent(array)) for name, array in tensors.items()}
    text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in about.items()}
    header: dict[str, Any] = {"__metadata__": text}
    at = 0
    order = sorted(held, key=lambda name: -held[name].itemsize)  # each begins on a multiple of its items' size
    for name in order:
        array = held[name]
        header[name] = {"dtype": WORDS[array.dtype.str], "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    words = json.dumps(header, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)
    return len(words).to_bytes(8, "little") + words + b"".join(held[name].tobytes() for name in order)
