"""Data parallelism: several processes share the rows of a batch and add up their gradients over gloo."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file, save_file

from limpid.comparison.observed import Observed
from limpid.comparison.variant import Tokens, Variant, mean_loss
from limpid.errors import ConfigError


def run(variant: Variant, seen: Observed, tokens: Tokens, targets: Tokens, backward: bool) -> None:
    """Logits of all rows, the loss, and the gradients that every process holds in the end."""
    if len(tokens) < variant.processes:
        raise ConfigError(f"{variant.label} shares {len(tokens)} row of text: leave out --text")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(  # type: ignore[attr-defined]
            _worker, (variant, tokens, targets, backward, folder), nprocs=variant.processes
        )
        summed = load_file(Path(folder) / "summed.safetensors")
    seen.record("logits", summed.pop("logits"))
    seen.record("loss", summed.pop("loss"))
    for name, gradient in summed.items():
        seen.gradients[name] = gradient.double().numpy()


def _worker(rank: int, variant: Variant, tokens: Tokens, targets: Tokens, backward: bool, folder: str) -> None:
    """One process: its rows, its share of the loss, and the sum with the others."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=variant.processes)
    rows = torch.arange(len(tokens)).tensor_split(variant.processes)[rank]
    model = variant.model()
    logits = model(tokens[rows])
    loss = mean_loss(model, tokens[rows], targets[rows], targets.numel())
    logits_of_all = torch.zeros(*tokens.shape, logits.shape[-1], dtype=logits.dtype)
    logits_of_all[rows] = logits.detach()
    shared = {"logits": logits_of_all, "loss": loss.detach()}
    if backward:
        loss.backward()
        shared |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for tensor in shared.values():
        dist.all_reduce(tensor)
    if rank == 0:
        save_file({name: tensor.contiguous() for name, tensor in shared.items()}, Path(folder) / "summed.safetensors")
    dist.barrier()
    dist.destroy_process_group()
