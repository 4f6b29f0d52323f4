"""What readers type, in the terminal or a page: answers, numbers of their own, derivatives, entries of arrays."""

import zlib
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fuzz.targets.target import Read

from limpid.primer.exercises import EXERCISES
from limpid.primer.grade import grade
from limpid.primer.own_numbers import given, spelled
from limpid.primer.puzzles.derive.derivation import CASES, derivation
from limpid.view.slices import parsed

OTHERWISE = ("[[1, 2], [3; 4]]", "1/3", "√49", "2.13×10²⁴", "36,16", "7B", "[10, 6]", "3x2", "sqrt 2 %")
"""Answers, spelled as readers spell them."""


def _named(name: str, text: str) -> bytes:
    """What it is typed for stands before it."""
    return f"{name}: {text}".encode()


def _taken(data: bytes, names: Sequence[str]) -> tuple[str, str]:
    """The name, else one that the bytes choose, and the text."""
    name, colon, text = data.decode("utf-8", "surrogateescape").partition(": ")
    return (name, text) if colon and name in names else (names[zlib.crc32(data) % len(names)], text or name)


def answer(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """Answers to exercises, graded."""
    valid = [_named(name, str(one.answer(one.first))) for name, one in EXERCISES.items()]
    numbers = [name for name, one in EXERCISES.items() if not one.form(one.first)]

    def read(data: bytes) -> None:
        name, text = _taken(data, list(EXERCISES))
        grade(EXERCISES[name], EXERCISES[name].first, text)

    return [*valid, *(_named(name, text) for name in numbers[:3] for text in OTHERWISE)], read


def numbers(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """Numbers of one's own, the exercise asked and solved with them."""

    def read(data: bytes) -> None:
        name, text = _taken(data, list(EXERCISES))
        found = given(EXERCISES[name], text)
        EXERCISES[name].question(found)
        EXERCISES[name].solved(found)

    return [_named(name, spelled(one.first)) for name, one in EXERCISES.items()], read


def derivative(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """Expressions that are held against finite differences."""
    posed = {str(seed): derivation(seed) for seed in range(len(CASES))}

    def read(data: bytes) -> None:
        seed, text = _taken(data, list(posed))
        posed[seed].judged(text)

    return [_named(seed, one.case.right) for seed, one in posed.items()], read


def entry(stock: Path, folder: Path) -> tuple[list[bytes], Read]:
    """Entries of arrays, as an address names them."""

    def read(data: bytes) -> None:
        parsed(data.decode("utf-8", "surrogateescape")).of((2, 4, 12, 9))

    return [b"blocks.0.attention.scores[0, 1, 5:9, :]", b"loss"], read
