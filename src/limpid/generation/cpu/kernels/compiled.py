"""How kernels are compiled: alike, and once for as long as no source of them changes."""

from __future__ import annotations

import ctypes.util
import hashlib
from pathlib import Path

from llvmlite.binding import get_host_cpu_features
from numba import njit

PARALLEL = ctypes.util.find_library("gomp") is not None  # numba's other pools cost more than they save here
LANES = 16
"""A sum runs in 16 parts, which are one vector."""
REGISTER_BYTES = 64 if get_host_cpu_features().get("avx512f") else 32
"""Of one vector register: 32 of 64 bytes with AVX-512, else 16 of 32 or less. It changes speed, never bits."""
GROUP = 8 if REGISTER_BYTES == 64 else 4
"""Rows of weights that are multiplied at once, each in sums of its own: what one of them reads, the others have."""
ROWS_TOGETHER = 2
"""Rows of x that they are multiplied with: as many as there are registers for all the sums."""
CACHE_LINE = 64


def _digest() -> int:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return int.from_bytes(hashlib.blake2b(b"".join(map(Path.read_bytes, files)), digest_size=7).digest(), "big")


SOURCES = _digest()
"""What a cached kernel has as a free variable: numba's cache knows its file, and not those of what it calls."""

jit = njit(error_model="numpy")
cached_jit = njit(cache=True, error_model="numpy")
cached_parallel_jit = njit(cache=True, error_model="numpy", parallel=PARALLEL)
