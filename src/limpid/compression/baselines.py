"""What everyday compressors make of the same bytes, for comparison."""

from __future__ import annotations

import lzma
import zlib
from typing import Any

import zstandard


class Baselines:
    """gzip, xz and zstd at the settings that people use for size, fed as the bytes pass."""

    def __init__(self) -> None:
        self._compressors: dict[str, Any] = {
            "gzip -9": zlib.compressobj(9, zlib.DEFLATED, 31),
            "xz -6": lzma.LZMACompressor(preset=6),
            "zstd -19": zstandard.ZstdCompressor(level=19).compressobj(),
        }
        self._sizes = dict.fromkeys(self._compressors, 0)

    def add(self, content: bytes) -> None:
        """Some more bytes."""
        for name, compressor in self._compressors.items():
            self._sizes[name] += len(compressor.compress(content))

    def finish(self) -> dict[str, int]:
        """Bytes that each needs for everything."""
        for name, compressor in self._compressors.items():
            self._sizes[name] += len(compressor.flush())
        return self._sizes
