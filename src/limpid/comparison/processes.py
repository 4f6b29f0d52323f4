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
from limpid.model import Transformer
from limpid.training.mesh import Mesh, open_mesh
from limpid.training.parallel.pipeline import require_stages
from limpid.training.state import State, fresh_state, set_weights
from limpid.training.step import backward
from limpid.training.update import clip

FOUND = "found.safetensors"


def run(variant: Variant, seen: Observed, tokens: Tokens, targets: Tokens, backward: bool) -> None:
    """Logits of all rows, the loss, the gradients that the processes hold in the end, and their norm."""
    parts = variant.parallel.micro_batches
    if len(tokens) < parts or (variant.parallel.pipeline > 1 and len(tokens) % parts):
        raise ConfigError(f"{variant.label} shares {len(tokens)} row of text among {parts}: leave out --text")
    require_stages(_config(variant), variant.parallel)
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
    batch = _rows_of(tokens, targets, mesh.parallel.micro_batches)
    found = {"logits": _logits(state, batch)}
    losses = backward(state, batch, config)
    found["loss"] = torch.tensor(sum(mesh.joined([float(one.value) for one in losses], len(batch))))
    if backwards:
        gradients = {name: one.grad for name, one in state.model.named_parameters() if one.grad is not None}
        found |= mesh.put_together(gradients)
        norm = clip(state.model, state.optimizer, state.scaler, None, state.pipeline)
        found["grad_norm"] = torch.tensor(norm, dtype=torch.float64)
    if mesh.is_main:
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, file)


def _laid_out(variant: Variant, mesh: Mesh) -> tuple[State, TrainConfig]:
    """A variant's model as it would train on this mesh."""
    config = _config(variant)
    state = fresh_state(config, mesh)
    set_weights(state.model, variant.weights)
    state.scaler = torch.amp.GradScaler("cpu", enabled=False)
    return state, config


def _config(variant: Variant) -> TrainConfig:
    return TrainConfig(variant.config, run=RunConfig(precision=variant.precision, compile="off"))  # type: ignore[arg-type]


def _rows_of(tokens: Tokens, targets: Tokens, parts: int) -> list[MicroBatch]:
    """A batch as one micro-batch for each of the parts that rows are dealt out in."""
    pairs = zip(tokens.tensor_split(parts), targets.tensor_split(parts), strict=True)
    return [MicroBatch({"tokens": some.numpy(), "targets": after.numpy()}) for some, after in pairs]


def _ending_in_logits(model: Transformer, micro: MicroBatch) -> Tensor:
    logits: Tensor = model(torch.as_tensor(micro["tokens"]))
    return logits


def _logits(state: State, batch: list[MicroBatch]) -> Tensor:
    """Of every row, on every process."""
    mesh, count = state.mesh, [len(micro["tokens"]) for micro in batch]
    places = torch.arange(sum(count)).split(count)
    mine = mesh.share(list(zip(places, batch, strict=True)))
    length, vocab = batch[0]["tokens"].shape[1], state.model.config.vocab_size
    found = torch.zeros(sum(count), length, vocab, dtype=state.model.compute)
    state.model.eval()
    with torch.no_grad():
        if state.pipeline is not None:
            passed = state.pipeline.forward([micro for _, micro in mine], _ending_in_logits)
        else:
            with mesh.unsharded_at_most(state.model):
                passed = [state.model(torch.as_tensor(micro["tokens"])) for _, micro in mine]
    for (rows, _), logits in zip(mine, passed, strict=True):
        assert isinstance(logits, Tensor)
        if mesh.answers:
            found[rows] = logits
    return mesh.all_sum(found)
