"""Stretches of files that are read as one array: nothing is copied but what is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from jaxtyping import Int64, Integer, UInt

Array = np.ndarray


class Joined:
    """Parts of mapped files, one after the other; indexed by a number, a slice or an array of numbers from 0 on."""

    ndim = 1

    def __init__(
        self, files: Sequence[Array], pieces: Int64[Array, "piece 3"], length: int, dtype: np.dtype[Any]
    ) -> None:
        """pieces  where each begins here, which file it is of, and where it begins there"""
        self.files, self.length, self.dtype = files, length, dtype
        self._starts, self._of, self._there = (np.ascontiguousarray(column) for column in pieces.T)

    def __len__(self) -> int:
        return self.length

    @property
    def shape(self) -> tuple[int]:
        return (self.length,)

    @property
    def size(self) -> int:
        return self.length

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> int: ...
    @overload
    def __getitem__(self, key: slice | Integer[Array, "..."]) -> UInt[Array, "..."]: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(self.length)
            return self._stretch(start, stop) if step == 1 else self._gathered(np.arange(start, stop, step))
        if isinstance(key, np.ndarray):
            return self._gathered(key)
        return int(self._gathered(np.array([key if key >= 0 else key + self.length]))[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("tokens of several files lie nowhere together: they can only be copied")
        return self[:].astype(dtype or self.dtype, copy=False)

    def _stretch(self, start: int, stop: int) -> Array:
        """What lies between two places, piece by piece."""
        stop = max(start, stop)
        found = np.empty(stop - start, self.dtype)
        piece = int(np.searchsorted(self._starts, start, side="right")) - 1
        here = start
        while here < stop:
            end = int(self._starts[piece + 1]) if piece + 1 < len(self._starts) else self.length
            there = int(self._there[piece]) + here - int(self._starts[piece])
            count = min(end, stop) - here
            found[here - start : here - start + count] = self.files[self._of[piece]][there : there + count]
            here, piece = here + count, piece + 1
        return found

    def _gathered(self, places: Integer[Array, "..."]) -> Array:
        """What lies at these places."""
        if places.size and not 0 <= places.min() <= places.max() < self.length:
            raise IndexError(f"there are {self.length} tokens, and {places.min()} … {places.max()} are asked for")
        pieces = np.searchsorted(self._starts, places, side="right") - 1
        files, there = self._of[pieces], self._there[pieces] + places - self._starts[pieces]
        found = np.empty(places.shape, self.dtype)
        for file in np.unique(files):
            here = files == file
            found[here] = self.files[file][there[here]]
        return found
