"""Memory of training steps: limpid as it trains, beside the same model in plain PyTorch, each side in its own process.

The plain side is a GPT by hand (benchmarks/plain.py: fused attention, GELU, layer norms, tied output matrix) with fused
AdamW, gradients set to None, cross-entropy on all logits; limpid's has the settings of `limpid train`. `process` is the
most that the process held, `tensors` the most that tensors held in a step, by PyTorch's profiler, in a second process.

    python benchmarks/step_memory.py [--model GPT|10.7M|…] [--threads 2] [--sides limpid …]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

from limpid.training.allocator import COMPACT

SIDES = (
    "plain, fp32", "plain, bf16", "plain, fp32, checkpointing", "plain, bf16, checkpointing",
    "limpid, fp32", "limpid, bf16", "limpid, fp32, checkpointing", "limpid, bf16, checkpointing",
    "limpid, bf16, compiled",
)  # fmt: skip
STEPS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="GPT", help="as in benchmarks/train.py; plain.py has the GPT alone")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sides", nargs="+", default=SIDES, metavar="SIDE", help="begin with plain or limpid")
    parser.add_argument("--child", choices=("process", "tensors"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measured(options)
        return
    print(f"{'':30} {'imports':>8} {'process':>8} {'tensors':>8}   MB; processor ms per step", flush=True)
    for side in (one for one in SIDES if one.startswith(tuple(options.sides))):
        figures = {kind: child(options, side, kind) for kind in ("process", "tensors")}
        imports, process, seconds = figures["process"]
        print(f"{side:30} {imports:8.0f} {process:8.0f} {figures['tensors'][0]:8.0f}   {seconds:.0f}", flush=True)


def child(options: argparse.Namespace, side: str, kind: str) -> list[float]:
    """What a process of its own prints; this one stays small, since Linux hands the most that it held on to it."""
    command = [sys.executable, __file__, "--model", options.model, "--threads", str(options.threads), "--child", kind]
    ours = {"GLIBC_TUNABLES": COMPACT} if side.startswith("limpid") else {}  # as `limpid train` starts itself
    done = subprocess.run(
        [*command, "--sides", side], check=True, capture_output=True, text=True, env=os.environ | ours
    )
    printed = done.stdout
    return [float(one) for one in printed.split()[-3:]] if kind == "process" else [float(printed.split()[-1])]


def measured(options: argparse.Namespace) -> None:
    import numpy as np
    import torch
    from plain import GPT

    sys.path.insert(0, str(__import__("pathlib").Path(__file__).parent.parent / "tests"))
    from train import MODELS, MicroBatch

    from limpid.machine import process_peak

    torch.set_num_threads(options.threads)
    side, (model, rows), rng = options.sides[0], MODELS[options.model], np.random.default_rng(0)
    imports = process_peak() or 0
    batches = []
    for _ in range(STEPS):
        tokens = rng.integers(0, model.vocab_size, (rows, model.context_length + 1))
        batches.append(MicroBatch({"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}, tuple(range(rows))))
    one = limpid_side(model, side, batches) if side.startswith("limpid") else plain_side(model, side, batches, GPT)
    if options.child == "tensors":
        print(tensors(one) / 1e6)
        return
    seconds = []
    for index in range(STEPS):
        start = time.process_time()
        one(index)
        seconds.append(time.process_time() - start)
    print(imports / 1e6, (process_peak() or 0) / 1e6, 1e3 * statistics.median(seconds[1:]))


def tensors(one: Any) -> int:
    """The most that tensors held in the third step, those that stay included."""
    import gc

    import torch
    from torch.profiler import ProfilerActivity, profile

    one(0), one(1)
    gc.collect()
    stores = {
        held.untyped_storage().data_ptr(): held.untyped_storage().nbytes()
        for held in gc.get_objects()
        if type(held) in (torch.Tensor, torch.nn.Parameter)
    }
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        one(2)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = sum(stores.values())
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def limpid_side(model: Any, side: str, batches: list[Any]) -> Any:
    from limpid.config import RunConfig, TrainConfig
    from limpid.training.allocator import keep_freed_memory
    from limpid.training.state import fresh_state
    from limpid.training.step import step

    keep_freed_memory()  # as `limpid train` does
    run = RunConfig(precision="bf16" if "bf16" in side else "fp32", max_steps=10_000, compile="off")
    run = replace(run, compile="on") if "compiled" in side else run
    run = replace(run, gradient_checkpointing="on") if "checkpointing" in side else run
    config = TrainConfig(model, run=run)
    state = fresh_state(config)

    def one(index: int) -> float:
        loss = step(state, [batches[index]], config).loss
        state.optimizer.zero_grad(set_to_none=True)  # as the next step begins: the profiler misses what it frees then
        return loss

    return one


def plain_side(sizes: Any, side: str, batches: list[Any], kind: Any) -> Any:
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    model = kind(sizes.vocab_size, sizes.d_model, sizes.num_layers, sizes.num_heads, sizes.context_length, tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if "checkpointing" in side:
        for block in model.blocks:
            block.forward = lambda x, run=block.forward: checkpoint(run, x, use_reentrant=False)

    def one(index: int) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in side):
            logits = model(torch.as_tensor(batches[index]["tokens"]))
            loss = F.cross_entropy(logits.flatten(0, 1), torch.as_tensor(batches[index]["targets"]).flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return one


if __name__ == "__main__":
    main()
