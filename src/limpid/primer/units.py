"""Units behind an answer: 112 GB where gigabytes are asked for, 1,000 steps, 1.7 bits for nats."""

from __future__ import annotations

import math

KNOWN: dict[str, tuple[str, float]] = {
    "byte": ("byte", 1), "b": ("byte", 1),
    "kilobyte": ("byte", 1e3), "kb": ("byte", 1e3), "kib": ("byte", 2**10),
    "megabyte": ("byte", 1e6), "mb": ("byte", 1e6), "mib": ("byte", 2**20),
    "gigabyte": ("byte", 1e9), "gb": ("byte", 1e9), "gib": ("byte", 2**30),
    "terabyte": ("byte", 1e12), "tb": ("byte", 1e12), "tib": ("byte", 2**40),
    "nat": ("information", 1), "bit": ("information", math.log(2)),
    "°": ("angle", 1),
    "parameter": ("number", 1), "weight": ("number", 1), "number": ("number", 1),
}  # fmt: skip
"""What a unit measures, and how much of it; any other measures itself."""


def factor(said: str, asked: str) -> float | None:
    """By what a number in one unit is multiplied to be in another; None where they measure different things."""
    (kind, size), (other, unit) = (_known(one) for one in (said, asked))
    return size / unit if kind == other else None


def is_known(word: str) -> bool:
    """Whether it is known what this measures: a number with any other word behind it says something else."""
    return _first(word) in KNOWN


def smallest(asked: str) -> tuple[str, float]:
    """The unit of which another is so many: bytes, of which a gigabyte is 1e9."""
    kind, size = _known(asked)
    return f"{kind}s", size


def _known(word: str) -> tuple[str, float]:
    one = _first(word)
    return KNOWN.get(one, (one, 1))


def _first(words: str) -> str:
    """The word that counts, without the s of many: of standard deviations, standard."""
    one = (words.lower().split() or [""])[0]
    return one if one in KNOWN or len(one) < 4 else one.removesuffix("s")
