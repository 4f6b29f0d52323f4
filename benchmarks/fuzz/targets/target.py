"""Something that limpid reads, as a function of bytes: a file is written, and what reads it is called."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz.mutate import Form

Read = Callable[[bytes], object]
SLOW = 64
"""Of so many inputs one is used wholly, where that takes long."""


@dataclass(frozen=True)
class Target:
    """How inputs for it are made, and what reads them."""

    form: Form
    make: Callable[[Path, Path], tuple[list[bytes], Read]]
    """From a stock of valid things and an empty folder: valid inputs, and what reads one."""
