"""Rows dealt to sources by weight: a function of the row's number, never a whole row away from what is due."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Int64

from limpid.config.options import require

Array = np.ndarray
LARGEST = 2**62
"""Sum of the weights in their smallest unit, so that 64 bits hold every credit."""
AT_ONCE = 1 << 20
"""Rows that are passed over together."""


class Mixture:
    """Which source each row is of, and how many rows of its own came before.

    The first source takes a row as late as its share allows, the others those that are left, whoever is due first: row
    n + 1 goes to a source only when its n + 1 shares exceed what it has had, and before they exceed it by a row. So no
    count is ever a whole row away from its share. That such a dealing exists follows as in Baruah et al. 1996, section
    3, and Tijdeman 1980; the earliest due first finds it.
    Weights are the decimals they print as. After as many rows as their sum has units everything repeats, so that any
    row is reached from the last such place: 10 ns for each row after it, and nothing where rows follow each other.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        exact = [Fraction(str(weight)) for weight in weights]
        unit = math.lcm(*(one.denominator for one in exact))
        whole = [int(one * unit) for one in exact]
        common = math.gcd(*whole)
        self.weights = [weight // common for weight in whole]
        self.period = sum(self.weights)
        require(
            self.period < LARGEST,
            f"weights are {', '.join(map(str, weights))}, which have too many digits together: round them",
        )
        self._at, self._credits, self._counts = 0, self._zeros(), self._zeros()

    def rows(self, first: int, count: int) -> tuple[Int64[Array, " row"], Int64[Array, " row"]]:
        """The sources of rows `first` … `first + count - 1`, from 0, and the number of each among its source's own."""
        if len(self.weights) == 1:
            return np.zeros(count, np.int64), np.arange(first, first + count)
        self._go_to(first)
        taken = self._dealt(count)
        own = np.empty(count, np.int64)
        for source, before in enumerate(self._counts - np.bincount(taken, minlength=len(self.weights))):
            here = taken == source
            own[here] = np.arange(before, before + here.sum())
        return taken, own

    def _go_to(self, row: int) -> None:
        start = row - row % self.period
        if not start <= self._at <= row:
            self._at, self._credits = start, self._zeros()
            self._counts = np.array([start // self.period * weight for weight in self.weights], np.int64)
        while self._at < row:
            self._dealt(min(AT_ONCE, row - self._at))

    def _dealt(self, count: int) -> Int64[Array, " row"]:
        """The sources of the next rows."""
        from limpid.data.dealing import deal  # compiled code, which runs of one text never load

        taken = np.empty(count, np.int64)
        deal(self._credits, np.array(self.weights, np.int64), self.period, taken)
        self._counts = self._counts + np.bincount(taken, minlength=len(self.weights))
        self._at += count
        return taken

    def _zeros(self) -> Int64[Array, " source"]:
        return np.zeros(len(self.weights), np.int64)
