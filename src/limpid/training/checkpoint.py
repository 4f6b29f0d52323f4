"""Checkpoints: everything the next step depends on, written whole or not at all, never a pickle."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from limpid.config import TrainConfig
from limpid.files import explained, folder_written_atomically
from limpid.manifest import write_manifest
from limpid.model.narrow import on_disk
from limpid.model.spread import own_part, spread_like
from limpid.model.weights import TensorFile
from limpid.objectives import POLICY
from limpid.quantities import parameters
from limpid.run import AVERAGE, CHECKPOINT_VERSION, Run
from limpid.training.mesh import Mesh
from limpid.training.precision import engine
from limpid.training.state import State, set_weights
from limpid.training.update import read_moments, write_moments

OPTIMIZER = "optimizer.safetensors"
"""Where a checkpoint keeps the moments."""


@dataclass(frozen=True)
class Snapshot:
    """A state as a checkpoint holds it: tensors by file, and the record beside them."""

    step: int
    files: Mapping[str, Mapping[str, Tensor]]
    record: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        """That this process holds of it."""
        return sum(own_part(tensor).nbytes for tensors in self.files.values() for tensor in tensors.values())

    def copied(self) -> Snapshot:
        """The same in memory of its own, which no step changes."""
        files = {
            file: {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
            for file, tensors in self.files.items()
        }
        return replace(self, files=files)


def snapshot(state: State, config: TrainConfig, fingerprint: str) -> Snapshot:
    """What the next step depends on, as it is now: the next step changes it."""
    files: dict[str, Mapping[str, Tensor]] = {
        weights_file(role): {name: on_disk(tensor.detach()) for name, tensor in model.named_parameters()}
        for role, model in state.models.items()
    }
    files[OPTIMIZER] = read_moments(state.model, state.optimizer, config.update)
    if state.average:
        files[AVERAGE] = state.average
    record = {
        "version": CHECKPOINT_VERSION,
        "step": state.step,
        "updates": state.updates,
        "data": fingerprint,
        "threads": torch.get_num_threads(),
        "processes": state.mesh.world,
        "parallel": str(state.mesh.parallel),
        **engine(state.mesh.device),
        "scaler": state.scaler.state_dict(),
    }
    return Snapshot(state.step, files, record)


def save(
    run: Run, state: State, config: TrainConfig, fingerprint: str, keep_config: Callable[[Path], None] | None = None
) -> Path:
    """Write the state after `state.step` steps and wait until it is there; returns its folder."""
    return write(run, snapshot(state, config, fingerprint), state.mesh, keep_config)


def write(run: Run, state: Snapshot, mesh: Mesh, keep_config: Callable[[Path], None] | None = None) -> Path:
    """Write a state, the same files from however many processes; returns its folder.

    keep_config  writes the configuration into the checkpoint's folder, where the run has no file of it yet to copy
    """
    folder = run.checkpoint(state.step)
    with _folder_written_by(mesh, folder) as temporary:
        for file, tensors in state.files.items():
            metadata = None if file in (OPTIMIZER, AVERAGE) else {"format": "pt"}
            _write_tensors(mesh, temporary / file, tensors, metadata)
        if mesh.is_main:
            (temporary / "state.json").write_text(json.dumps(state.record, indent=1))
            (keep_config or run.copy_config)(temporary)
            write_manifest(temporary)
    return folder


def load(run: Run, step: int, state: State, config: TrainConfig) -> dict[str, Any]:
    """Put `state` where it was after `step` steps; returns the checkpoint's own record.

    Raises  CheckpointError for a file that is not as it was written, or of another configuration
    """
    folder, files = run.checkpoint(step), [*map(weights_file, state.models), OPTIMIZER]
    files += [AVERAGE] if state.average else []
    record = state.mesh.decided(lambda: _verified(run, step, files))
    for role, model in state.models.items():
        shapes = {parameter.name: parameter.shape for parameter in parameters(model.config)}
        weights = TensorFile(folder / weights_file(role), shapes)
        set_weights(model, weights)
    moments = TensorFile(
        folder / OPTIMIZER,
        {name: tuple(t.shape) for name, t in read_moments(state.model, state.optimizer, config.update).items()},
    )
    write_moments(state.model, state.optimizer, config.update, moments, record["updates"])
    if state.average:
        shapes = {name: tuple(tensor.shape) for name, tensor in state.average.items()}
        averages = TensorFile(folder / AVERAGE, shapes)
        for name, tensor in state.average.items():
            tensor.copy_(spread_like(averages[name], tensor))
    if state.scaler.is_enabled():
        state.scaler.load_state_dict(record["scaler"])
    state.step, state.updates = record["step"], record["updates"]
    return record


def _verified(run: Run, step: int, files: list[str]) -> dict[str, Any]:
    record = run.read_state(step)
    run.verify(step, *files)
    return record


@contextlib.contextmanager
def _folder_written_by(mesh: Mesh, folder: Path) -> Iterator[Path]:
    """`folder_written_atomically` by the main process; all of them fill it."""
    with (
        folder_written_atomically(folder, parents=False)
        if mesh.is_main
        else contextlib.nullcontext(folder) as temporary
    ):
        with explained(f"cannot write {folder}"):  # each process's own part, too
            yield mesh.agree(temporary)
        mesh.wait()
    mesh.wait()


def _write_tensors(
    mesh: Mesh, file: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """One safetensors file. Of several processes each writes its part, and the parts are joined from the disk."""
    names = mesh.named_by_any(tensors)
    if mesh.world == 1 or not names:
        if mesh.is_main:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata=metadata)
        return
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_parts

    parts = file.with_suffix(".parts")
    writer = HuggingFaceStorageWriter(
        str(parts), dict.fromkeys(names, 1), save_distributed=True, enable_consolidation=True
    )
    try:
        save_parts(dict(tensors), storage_writer=writer, process_group=mesh.group)
    except CheckpointException as failed:  # the same on every process: what the first of those that failed came upon
        raise failed.failures[min(failed.failures)][0] from failed
    if mesh.is_main:
        (parts / "model-00001-of-00001.safetensors").rename(file)
        shutil.rmtree(parts)


def weights_file(role: str) -> str:
    """Where a checkpoint keeps the weights of the model that is trained, or of one beside it."""
    return "model.safetensors" if role == POLICY else f"{role}.safetensors"


def remove_unfinished(run: Run) -> None:
    """Remove what a process that was killed left half written or half removed: names that only we give."""
    for entry in (run.path / "checkpoints").glob(".*"):
        if re.fullmatch(r"\.[0-9]{6,}\.(writing|retired)", entry.name):
            shutil.rmtree(entry, ignore_errors=True)


def prune(run: Run, keep: int, protected: set[int]) -> None:
    """Remove all but the newest `keep` checkpoints and the protected ones; keep 0 removes none."""
    if keep:
        spare = [step for step in run.checkpoint_steps() if step not in protected]
        for step in spare[:-keep]:
            retired = run.checkpoint(step).with_name(f".{step:06d}.retired")
            run.checkpoint(step).rename(retired)  # gone at once for readers, however long the removal takes
            shutil.rmtree(retired, ignore_errors=True)
