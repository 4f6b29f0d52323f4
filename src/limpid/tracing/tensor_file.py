"""A file of tensors of a recorded step: they are read one by one, as they are asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from limpid.errors import CheckpointError
from limpid.files import explained
from limpid.manifest import seal_damage
from limpid.maths.operation import Array
from limpid.maths.rounding import FORMATS

SAFETENSORS = {"F64": FORMATS["fp64"], "F32": FORMATS["fp32"], "F16": FORMATS["fp16"], "BF16": FORMATS["bf16"]}
"""Formats of numbers as a file's header spells them."""
WORDS = {array: word for word, array in FORMATS.items()}


@dataclass(frozen=True)
class TensorFile:
    """Tensors by name, in the formats in which they were written.

    Raises  CheckpointError for a file that is missing or cut short
    """

    path: Path

    def require_whole(self) -> None:
        """Raises  CheckpointError when the file is not as it was written; an older one does not say."""
        with explained(f"cannot read {self.path}"):
            wrong = seal_damage(self.path)
        if wrong is not None:
            raise CheckpointError(f"{wrong}; delete it, and `limpid trace RUN --step N` records the step again")

    def _open(self) -> Any:
        """The file, mapped anew each time: pages that were read would otherwise stay in memory."""
        try:
            return safe_open(self.path, "numpy")
        except (OSError, SafetensorError) as error:
            way_out = "delete it, and `limpid trace RUN --step N` records the step again"
            reason = f"{' '.join(str(error).split())}; {way_out}" if self.path.is_file() else "there is no such file"
            raise CheckpointError(f"cannot open the recorded step {self.path}: {reason}") from error

    @cached_property
    def metadata(self) -> dict[str, str]:
        """What was written beside the tensors."""
        return dict(self._open().metadata() or {})

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self._formats)

    @cached_property
    def _formats(self) -> dict[str, Any]:
        file = self._open()
        words = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        return {name: SAFETENSORS.get(word) for name, word in words.items()}

    def format(self, name: str) -> Any:
        """The format of a tensor of numbers, without reading it."""
        return self._formats[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        return tuple(self._header[name]["shape"])

    def limits(self, name: str) -> tuple[str, float]:
        """The word for a tensor's format, and the largest number of that format."""
        dtype = self.format(name)
        return ("int64", 2.0**63) if dtype is None else (WORDS[dtype], float(ml_dtypes.finfo(dtype).max))

    def stored(self, name: str) -> Array:
        """A tensor in the format in which the engine had it."""
        if name not in self.names:
            raise KeyError(name)
        return np.array(self.mapped(name))

    def mapped(self, name: str) -> Array:
        """A tensor left on the disk: only the entries that are looked at are read.

        The library itself cannot slice bfloat16; the format is a header of offsets before the numbers.
        """
        start, end = self._header[name]["data_offsets"]
        shape, dtype = tuple(self._header[name]["shape"]), SAFETENSORS.get(self._header[name]["dtype"], "uint8")
        if self._header[name]["dtype"].startswith("I"):
            dtype = f"int{self._header[name]['dtype'][1:]}"
        at = self._header_bytes + start
        # As a Path, NumPy resolves it, which takes longer than mapping the file.
        return np.memmap(str(self.path), dtype, "r", at, shape) if end > start else np.empty(shape, dtype)

    @cached_property
    def _header_bytes(self) -> int:
        with self.path.open("rb") as file:
            return 8 + int.from_bytes(file.read(8), "little")

    @cached_property
    def _header(self) -> dict[str, Any]:
        with self.path.open("rb") as file:
            file.seek(8)
            found: dict[str, Any] = json.loads(file.read(self._header_bytes - 8))
        return found

    def exact(self, name: str) -> Array:
        """A tensor's numbers as float64 (ids stay integers)."""
        if name not in self.names:
            raise KeyError(name)
        array = np.asarray(self.mapped(name))
        return array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
