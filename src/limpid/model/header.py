"""What a file of weights holds, read from its header: a configuration is held against it before anything is made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from limpid.errors import CheckpointError
from limpid.files import one_line

FLOATS = ("F64", "F32", "F16", "BF16")
"""Formats of weights, by safetensors' names. Narrower ones need scales that stand elsewhere."""
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
"""The number of a block in a parameter's name, whoever named it."""


class Entry(NamedTuple):
    """One tensor of a file."""

    shape: tuple[int, ...]
    format: str


def header(file: Path) -> dict[str, Entry]:
    """The tensors of a safetensors file, by name.

    Raises  CheckpointError for a file that is missing, cut short, or no file
    """
    if not file.is_file():
        raise CheckpointError(f"{file} is missing: download or save the model again")
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
            return {name: Entry(tuple(one.get_shape()), str(one.get_dtype())) for name, one in slices.items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read ({one_line(error)}): download or save the model again") from error


def require_layers(asked: int, names: Iterable[str], where: str) -> None:
    """Raise CheckpointError when a configuration asks for another number of blocks than the weights have."""
    held = len({found[1] for name in names if (found := LAYER.search(name))})
    if asked != held:
        raise CheckpointError(f"{where} are of {held} layers, the configuration asks for {asked}")


def require_numbers(held: Mapping[str, Entry], where: str) -> None:
    """Raise CheckpointError when weights are not floating-point numbers as wide as arithmetic takes them."""
    for name, entry in held.items():
        if entry.format not in FLOATS:
            raise CheckpointError(
                f"{where}: {name} is of format {entry.format}, and limpid reads {', '.join(FLOATS)}: save the model "
                "unquantised"
            )
