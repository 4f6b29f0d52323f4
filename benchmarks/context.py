"""Long context: time and peak memory of a training step on one sequence, from 256 to 8,192 tokens.

Time is set against the FLOP count: 6 per weight and token for the matrices, 12 · context · width per token and block
Time is set against the FLOP count: 6 per weight and token for matrices, 12 · context · width per token and block
the length: three numbers, fitted to all lengths at once, predict every row.

    python benchmarks/context.py [--layers 4] [--width 384] [--longest 8192]
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from limpid.config import ModelConfig, RunConfig, TrainConfig
from limpid.data.batches import MicroBatch
from limpid.planning import flops_per_token
from limpid.training.allocator import keep_freed_memory
from limpid.training.mesh import best_device
from limpid.training.precision import resolve
from limpid.training.state import fresh_state
from limpid.training.step import step


def measured(config: TrainConfig, length: int, rounds: int) -> tuple[float, int]:
    """Median seconds of a step, and the most bytes it held at once."""
    state = fresh_state(config)
    tokens = np.random.default_rng(0).integers(0, config.model.vocab_size, (1, length + 1))
    batch = [MicroBatch({"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}, (0,))]
    step(state, batch, config)
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        step(state, batch, config)
        seconds.append(time.perf_counter() - began)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step(state, batch, config)
    held = peak = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return statistics.median(seconds), peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--longest", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    keep_freed_memory()
    precision = resolve("auto", best_device())
    lengths = [length for length in (256, 512, 1024, 2048, 4096, 8192, 16384) if length <= options.longest]
    rows = []
    for length in lengths:
        model = ModelConfig(
            vocab_size=4096, d_model=options.width, num_layers=options.layers, num_heads=options.width // 64,
            context_length=length,
        )  # fmt: skip
        config = TrainConfig(model, run=RunConfig(precision=precision, max_steps=10_000))
        rows.append(measured(config, length, options.rounds))
    matrices = [3 * length * flops_per_token(model, 0) for length in lengths]
    attention = [3 * length * (flops_per_token(model, length) - flops_per_token(model, 0)) / 2 for length in lengths]
    seconds = np.array([row[0] for row in rows])
    counted = np.stack([np.ones(len(lengths)), matrices, attention], 1)
    per_flop, *_ = np.linalg.lstsq(counted / seconds[:, None], np.ones(len(lengths)), rcond=None)
    table = Table(
        title=f"{options.layers} × {options.width}, {precision}, one sequence, {torch.get_num_threads()} threads"
    )
    for column in ("tokens", "ms", "predicted", "off by", "peak MB", "KB per token"):
        table.add_column(column, justify="right")
    for length, (taken, peak), predicted in zip(lengths, rows, counted @ per_flop, strict=True):
        table.add_row(
            f"{length:,}", f"{1e3 * taken:,.0f}", f"{1e3 * predicted:,.0f}", f"{taken / predicted - 1:+.0%}",
            f"{peak / 1e6:,.0f}", f"{peak / length / 1e3:,.1f}",
        )  # fmt: skip
    Console(width=100).print(table)
    fixed, rates = per_flop[0], 1e-9 / per_flop[1:]
    print(f"fitted: {1e3 * fixed:.0f} ms a step, matrices {rates[0]:,.0f} GFLOP/s, attention {rates[1]:,.0f} GFLOP/s")


if __name__ == "__main__":
    main()
