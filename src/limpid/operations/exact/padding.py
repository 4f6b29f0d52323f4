"""Edges mirrored or repeated."""

from __future__ import annotations

from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.exact import Exact, arithmetic, movement
from limpid.operations.exact.indexing import added_at
from limpid.operations.exact.movement import Raw

MODES = {"reflection": "reflect", "replication": "edge"}
KINDS = [f"{kind}_pad{axes}d" for kind in MODES for axes in (1, 2, 3)]


def _widths(padding: list[int], ndim: int) -> list[tuple[int, int]]:
    """Before and behind each axis: ATen names the last one first."""
    own = [(padding[at], padding[at + 1]) for at in range(len(padding) - 2, -1, -2)]
    return [(0, 0)] * (ndim - len(own)) + own


@movement(*KINDS)
def pad(self: Raw, padding: list[int], name: str) -> Raw:
    """What lies at the edge, again; a negative width cuts."""
    mode: Any = MODES[name.partition("_")[0]]
    widths = _widths(padding, self.ndim)
    made = np.pad(self, [(max(low, 0), max(high, 0)) for low, high in widths], mode)
    kept = zip(widths, made.shape, strict=True)
    return made[tuple(slice(max(-low, 0), size - max(-high, 0)) for (low, high), size in kept)]


@arithmetic(*(f"{kind}_backward" for kind in KINDS))
def pad_backward(grad_output: Array, self: Array, padding: list[int], name: str) -> Exact:
    """The gradients of all places that an entry was put to, added up."""
    places = pad(np.arange(self.size).reshape(self.shape), padding, name)
    found = added_at((self.size,), places.ravel(), grad_output.ravel())
    return Exact(*(np.asarray(one).reshape(self.shape) for one in (found.value, found.rounding, found.storage)))
