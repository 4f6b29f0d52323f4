"""How vocabularies spell the bytes of a text, and how many of them a token stands for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTES = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(OTHERS)}
"""Byte-level vocabularies spell each byte as one printable character (Radford et al. 2019): character to byte."""
LONE_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""How other vocabularies spell a byte that is part of a character they lack."""


def spelled(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for; one with other symbols was added as plain text."""
    if all(symbol in BYTES for symbol in token):
        return bytes(BYTES[symbol] for symbol in token)
    return token.encode()


def sizes_of(starts: Sequence[int], lone: Sequence[bool], text: str) -> list[int]:
    """Bytes from each token's first character to the next token's.

    Of tokens that start at one character, a lone byte has 1 of its bytes, the others share the rest evenly.
    """
    if not starts:
        return []
    place = np.concatenate([[0], np.cumsum([len(character.encode()) for character in text])])
    borders = place[np.maximum.accumulate(np.array([0, *starts[1:]]))]
    first = np.flatnonzero(np.diff(borders, prepend=-1))
    sizes = np.zeros(len(starts), np.int64)
    for begin, end in itertools.pairwise([*first, len(starts)]):
        left = int((place[-1] if end == len(starts) else borders[end]) - borders[begin])
        alone = [i for i in range(begin, end) if lone[i]][:left]
        sizes[alone] = 1
        sharing = [i for i in range(begin, end) if i not in alone] or alone
        for number, i in enumerate(sharing):
            rest = left - len(alone)
            sizes[i] += rest // len(sharing) + (number < rest % len(sharing))
    return [int(size) for size in sizes]


def printable(character: str) -> str:
    """A character, escaped as in a Python string where it would not be seen."""
    if "\udc80" <= character <= "\udcff":  # a byte that is no character by itself
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character if character.isprintable() and character != "\\" else repr(character)[1:-1]
