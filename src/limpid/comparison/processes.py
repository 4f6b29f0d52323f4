"""Several processes that take one step together, along the axes of a mesh, as torchrun starts them to train."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file, save_file
from torch import Tensor

from limpid.comparison.observed import Observed
from limpid.comparison.variant import Tokens, Variant
from limpid.config import RunConfig, TrainConfig
from limpid.data.batches import MicroBatch
from limpid.errors import ConfigError
from limpid.model.spread import whole
from limpid.training.mesh import Mesh, open_mesh
from limpid.training.state import State, fresh_state, set_weights
from limpid.training.step import backward
from limpid.training.update import clip

FOUND = "found.safetensors"


def run(variant: Variant, seen: Observed, tokens: Tokens, targets: Tokens, backward: bool) -> None:
    """Logits of all rows, the loss, the gradients that the processes hold in the end, and their norm."""
    if len(tokens) < variant.parallel.data:
        raise ConfigError(f"{variant.label} shares {len(tokens)} row of text: leave out --text")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(  # type: ignore[attr-defined]
            _process, (variant, tokens, targets, backward, folder), nprocs=variant.parallel.processes
        )
        take_down(seen, Path(folder) / FOUND)


def take_down(seen: Observed, file: Path) -> None:
    """What the processes found."""
    found = load_file(file)
    seen.record("logits", found.pop("logits"))
    seen.record("loss", found.pop("loss"))
    norm = found.pop("grad_norm", None)
    seen.grad_norm = None if norm is None else float(norm)
    for name, gradient in found.items():
        seen.gradients[name] = gradient.double().numpy()


def _process(rank: int, variant: Variant, tokens: Tokens, targets: Tokens, backwards: bool, folder: str) -> None:
    """One process of as many as the layout has, one thread each."""
    torch.set_num_threads(1)
    count = variant.parallel.processes
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=count)
    with open_mesh() as mesh:
        observe(mesh.laid_out(str(variant.parallel)), variant, tokens, targets, backwards, Path(folder) / FOUND)
        mesh.wait()
    dist.destroy_process_group()


def observe(mesh: Mesh, variant: Variant, tokens: Tokens, targets: Tokens, backwards: bool, file: Path) -> None:
    """The step of a mesh on a batch, put together and written down by the main process."""
    state, config = _laid_out(variant, mesh)
    batch = _rows_of(tokens, targets, mesh.data_world)
    found = {"logits": _logits(state, batch)}
    losses = backward(state, batch, config)
    found["loss"] = torch.tensor(sum(mesh.joined([float(one.value) for one in losses], len(batch))))
    if backwards:
        gradients = {name: one.grad for name, one in state.model.named_parameters() if one.grad is not None}
        found |= {name: whole(gradient).clone() for name, gradient in gradients.items()}
        norm = clip(state.model, state.optimizer, state.scaler, None)
        found["grad_norm"] = torch.tensor(norm, dtype=torch.float64)
    if mesh.is_main:
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, file)


def _laid_out(variant: Variant, mesh: Mesh) -> tuple[State, TrainConfig]:
    """A variant's model as it would train on this mesh."""
    config = TrainConfig(variant.config, run=RunConfig(precision=variant.precision, compile="off"))  # type: ignore[arg-type]
    state = fresh_state(config, mesh)
    set_weights(state.model, variant.weights)
    state.scaler = torch.amp.GradScaler("cpu", enabled=False)
    return state, config


def _rows_of(tokens: Tokens, targets: Tokens, parts: int) -> list[MicroBatch]:
    """A batch as one micro-batch for each of the parts that rows are dealt out in."""
    pairs = zip(tokens.tensor_split(parts), targets.tensor_split(parts), strict=True)
    return [MicroBatch({"tokens": some.numpy(), "targets": after.numpy()}) for some, after in pairs]


def _logits(state: State, batch: list[MicroBatch]) -> Tensor:
    """Of every row, on every process."""
    mesh, count = state.mesh, [len(micro["tokens"]) for micro in batch]
    places = torch.arange(sum(count)).split(count)
    found: Tensor | None = None
    state.model.eval()
    with torch.no_grad(), mesh.unsharded_at_most(state.model):
        for rows, micro in mesh.share(list(zip(places, batch, strict=True))):
            logits = state.model(torch.as_tensor(micro["tokens"]))
            assert isinstance(logits, Tensor)
            found = logits.new_zeros(sum(count), *logits.shape[1:]) if found is None else found
            if mesh.answers:
                found[rows] = logits
    assert found is not None
    return mesh.all_sum(found)
