"""Hold every layout of up to four processes against one process: python -m benchmarks.layouts [STEPS] [LAYOUT…].

Each of 50 steps begins at the weights that one process had then, so that the bound is that of one step: the one that
`limpid compare` computes, from perturbed passes in float64. A second walk goes its own way, and says how far rounding
carries losses in as many steps. Processes speak over gloo.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.fsdp  # here, once: each forked process would import them anew
import torch.distributed.pipelining
import torch.distributed.tensor.debug
import torch.distributed.tensor.parallel
import torch.multiprocessing as processes
from benchmarks.layouts.measured import Measured, expected_messages, measured
from benchmarks.layouts.reference import MICRO_BATCHES, Step, batches, configuration, walked

from limpid.config import TrainConfig
from limpid.config.parallel import Parallel, typed
from limpid.data.batches import MicroBatch
from limpid.quantities import MOMENTS, parameters, update_rule
from limpid.training.mesh import open_mesh

LAYOUTS = (
    "replicate=2", "shard=2,zero=1", "shard=2,zero=2", "shard=2", "tensor=2",
    "replicate=4", "shard=4,zero=1", "shard=4,zero=2", "shard=4", "tensor=4",
    "replicate=2,shard=2,zero=1", "replicate=2,shard=2,zero=2", "replicate=2,shard=2",
    "replicate=2,tensor=2", "shard=2,tensor=2,zero=1", "shard=2,tensor=2,zero=2", "shard=2,tensor=2",
    "pipeline=2", "pipeline=2,schedule=interleaved1f1b", "pipeline=2,schedule=interleavedzerobubble",
    "pipeline=2,schedule=zbvzerobubble", "pipeline=4", "pipeline=2,shard=2",
    "pipeline=2,replicate=2", "pipeline=2,shard=2,schedule=interleavedzerobubble", "pipeline=2,tensor=2",
)  # fmt: skip


def _process(rank: int, text: str, folder: Path, config: object, drawn: object, steps: Sequence[Step]) -> None:
    torch.set_num_threads(1)
    count = Parallel(**typed(text)).processes
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=count)
    with open_mesh() as mesh:
        found = measured(mesh.laid_out(text), config, drawn, steps)  # type: ignore[arg-type]
        if mesh.is_main:
            (folder / "found.json").write_text(json.dumps(dataclasses.asdict(found)))
        mesh.wait()
    dist.destroy_process_group()


@functools.cache
def reference(steps: int, blocks: int) -> tuple[TrainConfig, list[list[MicroBatch]], list[Step], dict[str, int]]:
    """A model of so many blocks, its batches, its steps on one process, and the bytes that it holds there."""
    config = configuration(steps, blocks)
    drawn = batches(config)
    every = parameters(config.model)
    whole = {
        "weights": 4 * sum(one.size for one in every),
        "gradients": 4 * sum(one.size for one in every),
        "moments": 4 * sum(one.size * len(MOMENTS[update_rule(config.update.optimizer, one)]) for one in every),
    }
    return config, drawn, walked(config, drawn), whole


def main(steps: int, layouts: Sequence[str]) -> int:
    """Print a row for each layout; returns how many are off."""
    torch.set_num_threads(1)
    print(f"{steps} steps; in bounds of rounding, above 1 is a fault")
    print("| layout | loss | gradients | norm | drift of the loss | share of weights, gradients, moments | "
          "gathers, scatters, reduces: found (theory) | s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    off = 0
    for text in layouts:
        began, parallel = time.perf_counter(), Parallel(**typed(text))
        config, drawn, alone, whole = reference(steps, max(2, parallel.stages))
        with tempfile.TemporaryDirectory() as folder:
            processes.start_processes(
                _process, (text, Path(folder), config, drawn, alone), nprocs=parallel.processes, start_method="fork"
            )
            found = Measured(**json.loads((Path(folder) / "found.json").read_text()))
        theory = expected_messages(config, parallel, MICRO_BATCHES)
        shares = ", ".join(f"{found.bytes_held[what] / total:.3f}" for what, total in whole.items())
        spoken = ", ".join(f"{found.messages[kind]} ({theory[kind]})" for kind in theory)
        bounds = f"{found.loss:.3f} | {found.gradient:.3f} ({found.worst}) | {found.norm:.3f}"
        seconds = time.perf_counter() - began
        print(f"| {text} | {bounds} | {found.drift:.2g} | {shares} | {spoken} | {seconds:.0f} |", flush=True)
        off += max(found.loss, found.gradient, found.norm) > 1 or found.messages != theory
    return off


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="?", type=int, default=50)
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", default=LAYOUTS)
    given = parser.parse_args()
    raise SystemExit(1 if main(given.steps, given.layouts) else 0)
