"""One entry of one array, written out: which numbers it was made of, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from limpid.maths.operation import Array

Index = tuple[int, ...]
Key = tuple[int | slice, ...]
ALL = slice(None)
GRADIENT = -1
"""Where a gradient's reader keeps the gradient of the output, beside the inputs 0, 1, …"""
SHOWN = 4
"""Terms of a sum that are written out, the largest first; the others are added up."""


@dataclass(frozen=True)
class Source:
    """An entry that another one was made of."""

    place: int  # which input, or GRADIENT
    index: Index
    share: float  # what it contributed


class Indices(Protocol):
    """Where the entries of an array stand, by their place in a row."""

    def __getitem__(self, place: int, /) -> Index:
        """The index of one of them."""


@dataclass(frozen=True)
class Spots:
    """Indices of the part of an array that lies between two keys, in its order, each made when it is asked for."""

    shape: Index
    before: Index = ()
    after: Index = ()

    def __getitem__(self, place: int, /) -> Index:
        return (*self.before, *(int(i) for i in np.unravel_index(place, self.shape)), *self.after)


@dataclass(frozen=True)
class Entry:
    """An entry, derived."""

    value: float
    symbols: str  # the equation with this entry's indices
    numbers: str  # the same with numbers, adding up to the value
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Reader:
    """The arrays around one operation, read entry by entry or slice by slice, as float64."""

    read: Callable[[int, Key], Array]
    shape: Callable[[int], Index]
    """Of input 0, 1, …, or of the output, GRADIENT."""
    inputs: int | None = None
    """How many there are; none is as many as the operation may take."""

    def __call__(self, place: int, *key: int | slice) -> Array:
        return self.read(place, key)

    def one(self, place: int, *index: int) -> float:
        return float(self.read(place, index))


def number(value: float) -> str:
    """Six digits, negative numbers in parentheses where they follow a sign."""
    return f"{value:.6g}"


def factor(value: float) -> str:
    return f"({value:.6g})" if value < 0 or "e" in f"{value:.6g}" else f"{value:.6g}"


def sum_of_products(left: Array, right: Array) -> str:
    """Σ left·right with its largest terms written out and the others added up."""
    terms = left * right
    return _sum([f"{factor(a)}·{factor(b)}" for a, b in _largest(left, right, terms)], terms)


def sum_of(terms: Array) -> str:
    """The same for plain terms."""
    return _sum([factor(a) for a, _ in _largest(terms, terms, terms)], terms)


def _largest(left: Array, right: Array, terms: Array) -> list[tuple[float, float]]:
    order = np.sort(strongest(terms))
    return [(float(left[i]), float(right[i])) for i in order]


def _sum(written: list[str], terms: Array) -> str:
    if not written:
        return "0"
    rest = len(terms) - len(written)
    line = " + ".join(written)
    if rest <= 0:
        return line
    others = float(terms.sum() - terms[strongest(terms)].sum())
    return f"{line} + [{rest:,} more: {number(others)}]"


def strongest(terms: Array) -> Array:
    """Positions of the SHOWN terms of the largest magnitude, the largest first, the first of equal ones first; what is
    not a number comes before all.
    """
    sizes = -np.nan_to_num(np.abs(terms), nan=np.inf)
    last = np.partition(sizes, SHOWN - 1)[SHOWN - 1] if len(sizes) > SHOWN else np.inf  # a vocabulary is not sorted
    among = np.flatnonzero(sizes <= last)
    return among[np.argsort(sizes[among], kind="stable")][:SHOWN]


def sources(place: int, indices: Indices, shares: Array) -> tuple[Source, ...]:
    """The strongest contributions, strongest first."""
    return tuple(Source(place, indices[int(i)], float(shares[i])) for i in strongest(shares))


def merged(*groups: tuple[Source, ...]) -> tuple[Source, ...]:
    """Several groups in one order."""
    found = [source for group in groups for source in group]
    return tuple(sorted(found, key=lambda source: -np.nan_to_num(abs(source.share), nan=np.inf)))
