"""A frozen base in bf16 or int8 beside low-rank factors: python -m benchmarks.narrow_base [fp32|bf16 …].

Against one in float32, in one process and in turns: bytes of the weights, the peak of tensors over a step, time of a
step as a ratio of the same round's, and what rounding does to the logits. Weights are drawn, factors of rank 16.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.model.narrow import Narrow
from limpid.training.state import State, fresh_state
from limpid.training.step import step

SIZES = {
    "25 M": ModelConfig(vocab_size=8192, d_model=512, num_layers=7, num_heads=8, lora_rank=16),
    "100 M": ModelConfig(vocab_size=8192, d_model=768, num_layers=14, num_heads=12, lora_rank=16),
}
ROUNDS = 7


def held(state: State) -> int:
    """Bytes of the weights."""
    parts = (
        [getattr(one, part) for part in one.__tensor_flatten__()[0]] if isinstance(one, Narrow) else [one]
        for one in state.model.parameters()
    )
    return sum(tensor.nbytes for own in parts for tensor in own)


def batch(config: TrainConfig) -> list[MicroBatch]:
    tokens = np.random.default_rng(0).integers(0, config.model.vocab_size, (config.run.batch_size, 129))
    return [MicroBatch({"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}, (0,))]


def peak(state: State, config: TrainConfig) -> int:
    """Bytes of all tensors at the worst moment of a step, weights and moments among them."""
    moments = [one for entry in state.optimizer.state.values() for one in entry.values() if torch.is_tensor(one)]
    now = most = 0
    state.optimizer.zero_grad(set_to_none=True)
    if state.mesh.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step(state, batch(config), config)
        return torch.cuda.max_memory_allocated()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(state, batch(config), config)
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda one: one.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return held(state) + sum(one.nbytes for one in moments) + most


def seconds(state: State, config: TrainConfig) -> float:
    began = time.perf_counter()
    step(state, batch(config), config)
    if state.mesh.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


@torch.no_grad()
def logits(state: State, config: TrainConfig) -> Any:
    tokens = torch.as_tensor(batch(config)[0]["tokens"]).to(state.mesh.device)
    return state.model.eval()(tokens).float()


def measure(size: str, precision: str) -> None:
    """One size in one arithmetic: a line for each format of the base."""
    rows: dict[str, list[Any]] = {}
    run = RunConfig(batch_size=4, max_steps=100, precision=precision, compile="off", gradient_checkpointing="off")
    configs = {
        base: TrainConfig(replace(SIZES[size], base_precision=base), update=UpdateConfig(warmup_steps=1), run=run)
        for base in ("fp32", "bf16", "int8")
    }
    first = None
    for base, config in configs.items():
        gc.collect()
        state = fresh_state(config)
        state.model.train(False)
        given = logits(state, config)
        first = given if first is None else first
        error = float((given - first).square().mean().sqrt() / first.std())
        divergence = float(
            (first.log_softmax(-1).exp() * (first.log_softmax(-1) - given.log_softmax(-1))).sum(-1).mean()
        )
        state.model.train()
        step(state, batch(config), config)
        rows[base] = [held(state), peak(state, config), error, divergence]
        del state
    states = {base: fresh_state(config) for base, config in configs.items()}
    times: dict[str, list[float]] = {base: [] for base in configs}
    for _ in range(ROUNDS + 1):
        for base, config in configs.items():
            times[base].append(seconds(states[base], config))
    for base, (weights, most, error, divergence) in rows.items():
        ratios = sorted(own / other for own, other in zip(times[base][1:], times["fp32"][1:], strict=True))
        print(
            f"{size} {precision:5} base {base:5} weights {weights / 1e6:7.1f} MB  peak of a step {most / 1e6:7.1f} MB  "
            f"time ×{statistics.median(ratios):.2f} ({ratios[0]:.2f} … {ratios[-1]:.2f})  "
            f"logits off by {error:.2e} of their deviation, KL {divergence:.2e} nats",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("precisions", nargs="*", metavar="PRECISION", default=["fp32", "bf16"])
    given = parser.parse_args()
    for size in SIZES:
        for precision in given.precisions:
            measure(size, precision)


if __name__ == "__main__":
    main()
