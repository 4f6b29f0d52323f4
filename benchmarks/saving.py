"""How long a checkpoint stops training: written while it waits, and beside it: python benchmarks/saving.py [ROUNDS]."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from limpid.config import ModelConfig, RunConfig, TrainConfig
from limpid.planning import parameter_count
from limpid.run import Run
from limpid.training import checkpoint
from limpid.training.allocator import keep_freed_memory
from limpid.training.mesh import Mesh
from limpid.training.saver import Saver
from limpid.training.state import fresh_state

CONFIG = TrainConfig(
    ModelConfig(vocab_size=8192, context_length=256, d_model=320, num_layers=6, num_heads=5),
    run=RunConfig(precision="fp32", compile="off"),
)


def main() -> None:
    """Both ways in turns, so that the disk's moods meet both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command does
    state = fresh_state(CONFIG, Mesh(torch.device("cpu")))
    for one in state.model.parameters():
        one.grad = torch.ones_like(one)
    state.optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        saver, waits, stops, written = Saver(run, state.mesh), [], [], []
        for _ in range(rounds):
            state.step += 1
            began = time.perf_counter()
            checkpoint.save(run, state, CONFIG, "data")
            waits.append(time.perf_counter() - began)
            state.step += 1
            began = time.perf_counter()
            saver.begin(checkpoint.snapshot(state, CONFIG, "data"))
            stops.append(time.perf_counter() - began)
            saver.wait()
            written.append(time.perf_counter() - began)
            checkpoint.prune(run, 1, set())
        size = sum(file.stat().st_size for file in run.checkpoint(state.step).iterdir())
        saver.close()
    print(f"{parameter_count(CONFIG.model):,} parameters, {size / 1e6:.0f} MB on the disk, {rounds} rounds")
    for name, seconds in (("training waits", waits), ("it goes on after", stops), ("and it is there after", written)):
        print(f"{name:<24}{statistics.median(seconds):8.3f} s ({min(seconds):.3f} to {max(seconds):.3f})")
    print(f"{'ratio':<24}{statistics.median(waits) / statistics.median(stops):8.1f}")


if __name__ == "__main__":
    main()
