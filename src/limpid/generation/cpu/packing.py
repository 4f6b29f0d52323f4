"""Matrices in the order in which they are read: groups of rows, each group in one run of addresses.

A processor guesses what it will need from one run far better than from as many runs as there are rows. Of a group come
16 entries of each row, then the next 16 of each; what fills no 16 comes entry by entry. bfloat16 comes in words of two
entries, 16 apart in their row, so that one word is two floats after a shift and a mask. Rows that fill no group are 0.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from jaxtyping import Shaped

from limpid.generation.cpu.kernels.compiled import CACHE_LINE, GROUP, LANES

Packed = Shaped[np.ndarray, "block group entries"]

HUGE_PAGE = 1 << 21


def packed(*parts: Shaped[np.ndarray, "block out in"]) -> Packed:
    """A copy in this order, the groups of several matrices in turn."""
    blocks, out, width = parts[0].shape
    groups = -(-out // GROUP)
    made = _aligned((blocks, groups * len(parts), GROUP * width), parts[0].dtype)
    for number, matrices in enumerate(parts):
        for matrix, place in zip(matrices, made[:, number :: len(parts)], strict=True):
            whole = np.concatenate([matrix, np.zeros((-out % GROUP, width), matrix.dtype)]) if out % GROUP else matrix
            _pack(whole.reshape(groups, GROUP, width), place)
    return made


def _pack(rows: Shaped[np.ndarray, "group row in"], place: Shaped[np.ndarray, "group entries"]) -> None:
    groups, _, width = rows.shape
    for start, stop, steps in _steps(rows.dtype, width):
        part = rows[:, :, start:stop].reshape(groups, GROUP, -1, steps)
        to = place[:, GROUP * start : GROUP * stop].reshape(groups, -1, GROUP, steps)
        if steps == 2 * LANES:
            part, to = _in_words(part), to.view(np.uint32)
        to[...] = part.swapaxes(1, 2)


def unpacked(groups: Packed, out: int) -> Shaped[np.ndarray, "block out in"]:
    """The matrices again, of so many rows."""
    blocks, count, width = groups.shape[0], groups.shape[1], groups.shape[2] // GROUP
    made = np.empty((blocks, count, GROUP, width), groups.dtype)
    for start, stop, steps in _steps(groups.dtype, width):
        part = groups[:, :, GROUP * start : GROUP * stop].reshape(blocks, count, -1, GROUP, steps)
        if steps == 2 * LANES:
            part = part.reshape(*part.shape[:-1], LANES, 2).swapaxes(-1, -2).reshape(part.shape)
        made[..., start:stop] = part.swapaxes(2, 3).reshape(blocks, count, GROUP, -1)
    return made.reshape(blocks, count * GROUP, width)[:, :out]


def _steps(dtype: np.dtype[Any], width: int) -> list[tuple[int, int, int]]:
    """First and last entries of the parts of a row, and how many of them one step takes; no part is empty."""
    whole, pairs = width // LANES * LANES, width // (2 * LANES) * 2 * LANES if dtype == np.uint16 else 0
    parts = [(0, pairs, 2 * LANES), (pairs, whole, LANES), (whole, width, 1)]
    return [part for part in parts if part[0] < part[1]]


def _in_words(part: Shaped[np.ndarray, "group row step 32"]) -> Shaped[np.ndarray, "group row step 16"]:
    """Entry i of 32 as the lower half of a word, entry i + 16 as its upper half."""
    wide = part.astype(np.uint32)
    words: Shaped[np.ndarray, "group row step 16"] = wide[..., :LANES] | wide[..., LANES:] << 16
    return words


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Packed:
    """Memory that begins with a cache line; in huge pages where it fills half of one: more addresses stay at hand."""
    size = int(np.prod(shape)) * dtype.itemsize
    huge = size >= HUGE_PAGE // 2 and hasattr(mmap, "MADV_HUGEPAGE")
    boundary = HUGE_PAGE if huge else CACHE_LINE
    if huge:  # private: Linux gives shared memory no huge pages unless told to by its administrator
        pages = mmap.mmap(-1, (-(-size // HUGE_PAGE) + 1) * HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE)
        room: Shaped[np.ndarray, " byte"] = np.frombuffer(pages, np.uint8)
    else:
        room = np.empty(size + boundary, np.uint8)
    start = -room.ctypes.data % boundary
    return room[start : start + size].view(dtype).reshape(shape)
