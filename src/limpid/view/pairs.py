"""Two arrays of one shape beside each other, and what lies between them: parts of them, and tiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from limpid.maths.operation import Array
from limpid.view.answers import Refused
from limpid.view.arrays import Derived, send_tile, within_matrix
from limpid.view.pyramid import pyramid
from limpid.view.slices import Asked, Readable, part_of, safetensors

Side = Literal["a", "b", "difference", "share"]


@dataclass(frozen=True)
class Pair:
    """Two arrays of one shape, left where they lie, and the bound of their difference where there is one."""

    name: str
    a: Readable
    b: Readable
    bound: Readable | None = None

    def side(self, side: str) -> Readable:
        """One of the two, their difference a - b, or its share of the bound.

        Raises  Refused for another word, and where nothing says what rounding allows
        """
        if side not in get_args(Side):
            raise Refused(f"side is {side[:40]!r}: choose one of {', '.join(get_args(Side))}")
        if side == "share":
            return self.share()
        if side == "difference":
            return Derived(self.a.shape, self._difference)
        return self.a if side == "a" else self.b

    def share(self) -> Readable:
        """|a - b| of each entry over its bound.

        Raises  Refused where there is none
        """
        if self.bound is None:
            raise Refused(f"{self.name} was not redone in float64: nothing says what rounding allows", 404, "exact")
        return Derived(self.a.shape, self._share)

    def slice(self, asked: Asked, side: str) -> bytes:
        """A part of one side, as safetensors."""
        array = self.side(side)
        part, start = part_of(array, asked)
        about = {"name": asked.name, "kind": side, "shape": list(array.shape), "start": list(start)}
        return safetensors({"data": part}, about)

    def tiles(self, asked: Asked, side: str, level: int, row: int, column: int) -> bytes:
        """One tile of the matrix that leading indices leave of one side, as safetensors."""
        matrix = within_matrix(self.side(side), asked)
        return send_tile(self.name, matrix, pyramid(matrix), level, row, column)

    def _difference(self, index: Any) -> Array:
        a, b = (np.asarray(one[index]).astype(np.float64) for one in (self.a, self.b))
        with np.errstate(all="ignore"):
            return np.asarray(np.where(a == b, 0.0, a - b))

    def _share(self, index: Any) -> Array:
        assert self.bound is not None
        a, b, bound = (np.asarray(one[index]).astype(np.float64) for one in (self.a, self.b, self.bound))
        with np.errstate(all="ignore"):
            return np.asarray(np.where(a == b, 0.0, np.abs(a - b) / bound))


@dataclass(frozen=True)
class VectorPair(Pair):
    """Two arrays whose vectors along the last axis have one bound each: the share of an entry is that of its vector."""

    limit: Array = field(kw_only=True)  # root mean square of a - b, of each vector

    def share(self) -> Readable:
        """The difference of each vector over its bound, at each of its entries."""
        from limpid.comparison.difference import in_bounds

        with np.errstate(all="ignore"):
            shares = in_bounds(np.asarray(self.a[...]), np.asarray(self.b[...]), self.limit)
        return np.broadcast_to(shares[..., None] if self.a.shape else shares, self.a.shape)
