"""Training speed: limpid as it trains by default, beside the same model in plain fp32 PyTorch, step by step in turn.

The plain side is written as PyTorch's tutorials write it: transformers' eager Llama of the same sizes and initial
weights, cross-entropy on all logits, clip_grad_norm_, torch.optim.AdamW, float32 throughout.

    python benchmarks/train.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from limpid.config import ModelConfig, RunConfig, TrainConfig
from limpid.data.batches import MicroBatch
from limpid.training.begin import fresh_state
from limpid.training.precision import resolve
from limpid.training.step import step

VOCAB_SIZE = 4096


def limpid_side(precision: str, batches: list[MicroBatch]) -> Callable[[int], float]:
    config = TrainConfig(ModelConfig(vocab_size=VOCAB_SIZE), run=RunConfig(precision=precision, max_steps=10_000))
    state = fresh_state(config)
    return lambda index: step(state, [batches[index]], config).loss


def plain_side(batches: list[MicroBatch]) -> Callable[[int], float]:
    ours = TrainConfig(ModelConfig(vocab_size=VOCAB_SIZE))
    sizes, update = ours.model, ours.update
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=sizes.d_model,
            intermediate_size=sizes.d_ff,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=sizes.num_heads,
            max_position_embeddings=sizes.context_length,
            tie_word_embeddings=True,
            use_cache=False,
        )
    )
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=update.learning_rate,
        betas=(update.beta1, update.beta2),
        weight_decay=update.weight_decay,
    )

    def one(index: int) -> float:
        optimizer.zero_grad()
        logits = model(torch.as_tensor(batches[index].inputs)).logits
        loss = F.cross_entropy(logits.flatten(0, 1), torch.as_tensor(batches[index].targets).flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="steps of each side, taken in turn")
    rounds = parser.parse_args().rounds
    defaults = TrainConfig()
    shape = (defaults.run.batch_size, defaults.model.context_length)
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(rounds + 2):
        tokens = rng.integers(0, VOCAB_SIZE, (shape[0], shape[1] + 1))
        batches.append(MicroBatch(tokens[:, :-1], tokens[:, 1:], tuple(range(shape[0]))))
    resolved = resolve("auto")
    sides = {
        f"limpid, {resolved} (default here)": limpid_side(resolved, batches),
        "limpid, fp32": limpid_side("fp32", batches),
        "plain PyTorch, fp32": plain_side(batches),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(rounds + 2):
        for name, one in sides.items():
            start = time.perf_counter()
            one(index)
            if index >= 2:  # the first steps pay for allocations
                seconds[name].append(time.perf_counter() - start)
    console = Console()
    table = Table(title=f"one training step, {shape[0]} × {shape[1]} tokens, {torch.get_num_threads()} threads")
    for column in ("side", "ms per step, median", "quartiles", "tokens/s", "times plain"):
        table.add_column(column, justify="left" if column == "side" else "right")
    plain = seconds["plain PyTorch, fp32"]
    for name, taken in seconds.items():
        ratios = [theirs / ours for ours, theirs in zip(taken, plain, strict=True)]
        low, _, high = statistics.quantiles(taken, n=4)
        table.add_row(
            name,
            f"{1e3 * statistics.median(taken):.0f}",
            f"{1e3 * low:.0f} … {1e3 * high:.0f}",
            f"{shape[0] * shape[1] / statistics.median(taken):,.0f}",
            f"{statistics.median(ratios):.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
