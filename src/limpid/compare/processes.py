"""Data parallelism: several processes share the rows of a batch and add up their gradients over gloo."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file, save_file
from torch import Tensor

from limpid.compare.taken import Taken
from limpid.errors import ConfigError

if TYPE_CHECKING:
    from limpid.compare.ways import Way


def take(one: Way, taken: Taken, tokens: Tensor, targets: Tensor, backward: bool) -> None:
    """Logits of all rows, the loss, and the gradients that every process holds in the end."""
    from limpid.compare.ways import see

    if len(tokens) < one.processes:
        raise ConfigError(f"{one.spelled} shares {len(tokens)} row of text: leave out --text")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(  # type: ignore[attr-defined]
            _worker, (one, tokens, targets, backward, folder), nprocs=one.processes
        )
        found = load_file(Path(folder) / "found.safetensors")
    see(taken, "logits", found.pop("logits"))
    see(taken, "loss", found.pop("loss"))
    for name, gradient in found.items():
        taken.gradients[name] = gradient.double().numpy()


def _worker(rank: int, one: Way, tokens: Tensor, targets: Tensor, backward: bool, folder: str) -> None:
    """One process: its rows, its share of the loss, and the sum with the others."""
    from limpid.compare.ways import next_token_loss

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=one.processes)
    mine = torch.arange(len(tokens)).tensor_split(one.processes)[rank]
    model = one.model()
    logits = model(tokens[mine])
    loss = next_token_loss(model, tokens[mine], targets[mine], targets.numel())
    whole = torch.zeros(*tokens.shape, logits.shape[-1], dtype=logits.dtype)
    whole[mine] = logits.detach()
    shared = {"logits": whole, "loss": loss.detach()}
    if backward:
        loss.backward()
        shared |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for tensor in shared.values():
        dist.all_reduce(tensor)
    if rank == 0:
        save_file({name: tensor.contiguous() for name, tensor in shared.items()}, Path(folder) / "found.safetensors")
    dist.barrier()
    dist.destroy_process_group()
