"""Batches that depend on the state, such as rollouts: written down when they are drawn, read from then on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from limpid.data.batches import MicroBatch
from limpid.errors import CheckpointError
from limpid.files import MALFORMED, file_written_atomically, one_line
from limpid.manifest import UNSEALED, seal, seal_damage
from limpid.training.state import State


class BatchSource(Protocol):
    """Where a run's batches come from."""

    def batch(self, step: int, state: State) -> Sequence[MicroBatch]:
        """The micro-batches of step `step`, from 1, given the state before it."""

    def epoch(self, step: int) -> float:
        """How often the data has been seen after step `step`."""


class StoredBatches:
    """A source whose batches depend on the state: a resumed or replayed step gets the very batch that was drawn."""

    def __init__(self, source: BatchSource, folder: Path, steps: int = 1) -> None:
        """`steps` is how many steps in a row are taken on one batch, which is stored under the first of them."""
        self.source, self.folder, self.steps = source, folder, steps

    def batch(self, step: int, state: State) -> Sequence[MicroBatch]:
        """The stored batch of step `step`; drawn and stored now if there is none yet."""
        step -= (step - 1) % self.steps
        file = self.folder / f"{step:06d}.safetensors"
        if state.mesh.agree(file.is_file()):
            return read_batch(file)
        drawn = state.mesh.agree(self.source.batch(step, state))  # models may be spread: all take part, one is heard
        if state.mesh.is_main:
            write_batch(file, drawn)
        return drawn

    def epoch(self, step: int) -> float:
        return self.source.epoch(step)


def write_batch(file: Path, batch: Sequence[MicroBatch]) -> None:
    """One safetensors file, whole or absent: arrays as INDEX/NAME, the rows of each micro-batch beside them."""
    arrays = {
        f"{index}/{name}": np.ascontiguousarray(array)
        for index, micro in enumerate(batch)
        for name, array in micro.arrays.items()
    }
    rows = json.dumps([list(micro.rows) for micro in batch])
    measured = json.dumps([dict(micro.measured) for micro in batch])
    with file_written_atomically(file, parents=False) as temporary:
        save_file(arrays, temporary, metadata={"rows": rows, "measured": measured, **UNSEALED})
        seal(temporary)


def read_batch(file: Path) -> tuple[MicroBatch, ...]:
    """The micro-batches of a stored step.

    Raises  CheckpointError for a file that is damaged or foreign
    """
    try:
        if wrong := seal_damage(file):
            raise ValueError(wrong)
        with safe_open(file, "numpy") as tensors:
            said = tensors.metadata() or {}
            rows = json.loads(said["rows"])
            measured = json.loads(said["measured"]) if "measured" in said else [{}] * len(rows)
            arrays = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
        return tuple(
            MicroBatch(
                {name.partition("/")[2]: array for name, array in arrays.items() if name.split("/")[0] == str(index)},
                tuple(map(int, its_rows)),
                {name: float(value) for name, value in its_measured.items()},
            )
            for index, (its_rows, its_measured) in enumerate(zip(rows, measured, strict=True))
        )
    except (OSError, SafetensorError, *MALFORMED) as error:
        raise CheckpointError(
            f"{file} is no stored batch ({one_line(error)}): resume from a checkpoint before it, and delete it to draw "
            "it anew"
        ) from error
