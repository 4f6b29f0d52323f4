"""Training speed: limpid as it trains by default, beside the same model in plain PyTorch, five steps each in turn.

The first of the five is not counted: it finds the caches full of another side's numbers. On a GPU each side is alone
on it, ten steps to warm up and then as many as are counted, and the most memory that its tensors held is told.

The plain sides are written as PyTorch's tutorials write it: transformers' eager Llama of the same sizes, or a GPT by
hand (`--model GPT`), cross-entropy on all logits, clip_grad_norm_, torch.optim.AdamW; float32 throughout, or under
bf16 autocast, which is left out where bf16 products gain nothing. On a GPU limpid launches a micro-batch as one CUDA
graph, and for comparison kernel by kernel.

    python benchmarks/train.py [--model default|0.8M|10.7M|GPT|124M|GPT-2] [--rounds 6] [--profile]

--profile prints where the processor or the GPU spends limpid's steps, kernel by kernel.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from plain import GPT
from rich.console import Console
from rich.table import Table

from limpid.config import ModelConfig, RunConfig, TrainConfig
from limpid.data.batches import MicroBatch
from limpid.planning import flops_per_token, parameter_count
from limpid.training.allocator import keep_freed_memory
from limpid.training.mesh import best_device
from limpid.training.precision import measured_peak, resolve
from limpid.training.state import fresh_state
from limpid.training.step import step

Side = Callable[[int], float]
OF_GPT = {
    "positions": "learned", "norm": "layer", "mlp": "plain", "activation": "gelu", "attention_bias": True,
    "attention_output_bias": True, "mlp_bias": True,
}  # fmt: skip
SMALL = {"d_model": 384, "num_layers": 6, "num_heads": 6, "context_length": 256}
LARGE = {"d_model": 768, "num_layers": 12, "num_heads": 12}
MODELS: dict[str, tuple[ModelConfig, int]] = {
    "default": (ModelConfig(vocab_size=4096), TrainConfig().run.batch_size),
    "0.8M": (ModelConfig(vocab_size=65, d_model=128, num_layers=4, num_heads=4, d_ff=344, context_length=64), 12),
    "10.7M": (ModelConfig(vocab_size=65, d_ff=1024, **SMALL), 16),
    "GPT": (ModelConfig(vocab_size=65, d_ff=1536, **SMALL, **OF_GPT), 16),
    "124M": (ModelConfig(vocab_size=50257, d_ff=2048, context_length=256, **LARGE), 2),
    "GPT-2": (ModelConfig(vocab_size=50304, d_ff=3072, context_length=1024, **LARGE, **OF_GPT), 16),
}
"""Models and rows per batch."""
TURN = 5
"""Steps of one side before the next has its turn."""


def limpid_side(
    model: ModelConfig, precision: str, batches: list[MicroBatch], compiled: bool = False, one_by_one: bool = False
) -> Side:
    config = TrainConfig(
        model, run=RunConfig(precision=precision, max_steps=10_000, compile="on" if compiled else "off")
    )
    state = fresh_state(config)
    return lambda index: step(state, [batches[index]], config, looked_into=one_by_one).loss


def plain_side(sizes: ModelConfig, batches: list[MicroBatch], *, autocast: bool, best: bool = False) -> Side:
    update, device = TrainConfig().update, best_device()
    torch.manual_seed(0)
    model = as_written(sizes).to(device)
    call = torch.compile(model) if best else model
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=update.learning_rate,
        betas=(update.beta1, update.beta2),
        weight_decay=update.weight_decay,
        fused=best,
    )

    def one(index: int) -> float:
        optimizer.zero_grad()
        tokens, targets = (torch.as_tensor(batches[index][name]).to(device) for name in ("tokens", "targets"))
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            made = call(tokens)
            logits = getattr(made, "logits", made)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return one


def as_written(sizes: ModelConfig) -> torch.nn.Module:
    """The model as others write it."""
    if sizes.positions == "learned":
        return GPT(sizes.vocab_size, sizes.d_model, sizes.num_layers, sizes.num_heads, sizes.context_length, tied=True)
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=sizes.vocab_size,
            hidden_size=sizes.d_model,
            intermediate_size=sizes.sizes.d_ff,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=sizes.num_heads,
            max_position_embeddings=sizes.context_length,
            tie_word_embeddings=True,
            use_cache=False,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="default")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each side, five steps each")
    parser.add_argument("--profile", action="store_true", help="where limpid's steps spend their time")
    options = parser.parse_args()
    keep_freed_memory()  # as `limpid train` does; it serves both sides here
    model, rows = MODELS[options.model]
    shape, rng = (rows, model.context_length), np.random.default_rng(0)
    batches = []
    for _ in range((2 + options.rounds) * TURN):
        tokens = rng.integers(0, model.vocab_size, (shape[0], shape[1] + 1))
        batches.append(MicroBatch({"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}, tuple(range(shape[0]))))
    sides = make_sides(model, batches)
    if options.profile:
        for name, make in sides.items():
            if name.startswith("limpid") and "fp32" not in name:
                profile(name, make())
        return
    held: dict[str, int] = {}
    seconds = alone(sides, options.rounds, held) if best_device().type == "cuda" else in_turns(sides, options.rounds)
    report(options.model, model, shape, seconds, held)


def make_sides(model: ModelConfig, batches: list[MicroBatch]) -> dict[str, Callable[[], Side]]:
    """What is measured, each made when its turn comes."""
    precision = resolve("auto", best_device())
    if precision == "fp32":
        return {
            "plain PyTorch, fp32": partial(plain_side, model, batches, autocast=False),
            "the same, compiled, fused AdamW": partial(plain_side, model, batches, autocast=False, best=True),
            "limpid, fp32": partial(limpid_side, model, "fp32", batches),
            "limpid, fp32, compiled": partial(limpid_side, model, "fp32", batches, compiled=True),
        }
    sides: dict[str, Callable[[], Side]] = {
        "plain PyTorch, fp32": partial(plain_side, model, batches, autocast=False),
        "plain PyTorch, bf16 autocast": partial(plain_side, model, batches, autocast=True),
        "the same, compiled, fused AdamW": partial(plain_side, model, batches, autocast=True, best=True),
        "limpid, fp32": partial(limpid_side, model, "fp32", batches),
    }
    sides[f"limpid, {precision}"] = partial(limpid_side, model, precision, batches)
    compiled = partial(limpid_side, model, precision, batches, compiled=True)
    if best_device().type == "cuda":
        sides[f"limpid, {precision}, compiled, kernel by kernel"] = partial(compiled, one_by_one=True)
    sides[f"limpid, {precision}, compiled"] = compiled
    return sides


def in_turns(sides: dict[str, Callable[[], Side]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every step but the first of a turn, all sides in one process."""
    made = {name: make() for name, make in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(1 + rounds):  # in the first turn they allocate, and compile
        for name, side in made.items():
            for index in range(turn * TURN, (turn + 1) * TURN):
                start = time.perf_counter()
                side(index)
                if turn and index % TURN:
                    seconds[name].append(time.perf_counter() - start)
    return seconds


def alone(sides: dict[str, Callable[[], Side]], rounds: int, held: dict[str, int]) -> dict[str, list[float]]:
    """Seconds of every step after the first ten, one side after the other, and the bytes that its tensors held."""
    seconds: dict[str, list[float]] = {}
    for name, make in sides.items():
        side, seconds[name] = make(), []
        for index in range((2 + rounds) * TURN):
            start = time.perf_counter()
            side(index)
            if index >= 2 * TURN:
                seconds[name].append(time.perf_counter() - start)
        held[name] = torch.cuda.max_memory_allocated()
        del side
        gc.collect()
        torch.compiler.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return seconds


def profile(name: str, side: Side) -> None:
    """The kernels and calls of three steps that take longest."""
    for index in range(TURN):
        side(index)
    kind = "cuda" if best_device().type == "cuda" else "cpu"
    activities = [
        torch.profiler.ProfilerActivity.CPU,
        *([torch.profiler.ProfilerActivity.CUDA] if kind == "cuda" else []),
    ]
    with torch.profiler.profile(activities=activities) as seen:
        for index in range(TURN, TURN + 3):
            side(index)
    print(f"{name}, three steps")
    print(seen.key_averages().table(sort_by=f"self_{kind}_time_total", row_limit=30, max_name_column_width=70))


def report(
    name: str, model: ModelConfig, shape: tuple[int, int], seconds: dict[str, list[float]], held: dict[str, int]
) -> None:
    tokens = shape[0] * shape[1]
    flops = 3 * tokens * flops_per_token(model, shape[1])
    form = torch.float32 if "limpid, fp32, compiled" in seconds else torch.bfloat16
    kind, peak = {torch.float32: "fp32", torch.bfloat16: "bf16"}[form], measured_peak(form, best_device())
    size = f"{parameter_count(model) / 1e6:.1f} M parameters, {shape[0]} × {shape[1]} tokens a step"
    table = Table(title=f"{name}: {size}, {torch.get_num_threads()} threads")
    for column in (
        "side",
        "ms/step",
        "fastest … slowest",
        "tokens/s",
        "× fp32",
        f"of {kind} peak",
        *(["GB"] if held else []),
    ):
        table.add_column(column, justify="left" if column == "side" else "right")
    base = seconds["plain PyTorch, fp32"]
    for side, taken in seconds.items():
        middle = statistics.median(taken)
        ratio = statistics.median(b / t for b, t in zip(base, taken, strict=True))
        table.add_row(
            side, f"{1e3 * middle:.1f}", f"{1e3 * min(taken):.1f} … {1e3 * max(taken):.1f}", f"{tokens / middle:,.0f}",
            f"{ratio:.2f}", f"{flops / middle / peak:.0%}", *([f"{held[side] / 1e9:.2f}"] if held else []),
        )  # fmt: skip
    Console(width=120).print(table)
    print(f"{kind} matrix products reach {peak / 1e9:,.0f} GFLOP/s here; a step is {flops / 1e9:,.1f} GFLOP of them")


if __name__ == "__main__":
    main()
