"""Generation speed: limpid beside transformers' generate, the same weights, batch 1, greedy, in turn.

python benchmarks/generate.py [--model default|10M|124M] [--rounds 5] [--tokens 100]

Weights are drawn at random and rounded to bf16, as published ones mostly are: limpid then reads two bytes of each
without losing anything, and one byte when asked for int8. The limit is the time to read every weight once at the rate
at which the machine reads, measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from limpid.config import ModelConfig
from limpid.generation import Decoder
from limpid.model import Cache, Transformer, initialise
from limpid.model.export import save_folder
from limpid.planning import parameter_count

MODELS = {
    "default": ModelConfig(vocab_size=2048),
    "10M": ModelConfig(vocab_size=4096, d_model=384, num_layers=6, num_heads=6, d_ff=1024, context_length=256),
    "124M": ModelConfig(
        vocab_size=50257, context_length=1024, d_model=768, num_layers=12, num_heads=12, d_ff=3072, norm="layer",
        positions="learned", mlp="plain", activation="gelu_tanh", attention_bias=True, attention_output_bias=True,
        mlp_bias=True,
    ),
}  # fmt: skip
PROMPT = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="default")
    parser.add_argument("--rounds", type=int, default=5, help="generations of each side, taken in turn")
    parser.add_argument("--tokens", type=int, default=100, help="tokens per generation")
    options = parser.parse_args()
    config, count = MODELS[options.model], options.tokens
    model = initialise(Transformer(config), 0).to(torch.bfloat16).to(torch.float32).eval()
    with tempfile.TemporaryDirectory() as folder:
        save_folder(Path(folder) / "model", config, model.state_dict(), tokenizer_json=None, end_of_text=None)
        theirs = AutoModelForCausalLM.from_pretrained(Path(folder) / "model").eval()
        half = AutoModelForCausalLM.from_pretrained(Path(folder) / "model", dtype=torch.bfloat16).eval()
    prompt = torch.randint(0, config.vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    sides: dict[str, Callable[[], list[int]]] = {
        "transformers, fp32": lambda: by_transformers(theirs, prompt, count),
        "transformers, bf16": lambda: by_transformers(half, prompt, count),
    }
    for weights in ("fp32", "bf16", "int8"):
        decoder = Decoder(model, weights)
        sides[f"limpid, {weights} weights"] = lambda decoder=decoder: by_limpid(decoder, prompt, count)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    made = {}
    for number in range(options.rounds + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            made[name] = side()
            if number:  # the first round pays for allocations
                seconds[name].append((time.perf_counter() - start) / count)
    agree = made["limpid, bf16 weights"] == made["limpid, fp32 weights"] == made["transformers, fp32"]
    report(options.model, config, seconds, agree)


@torch.inference_mode()
def by_limpid(decoder: Decoder, prompt: torch.Tensor, count: int) -> list[int]:
    cache = Cache(decoder.config, 1, PROMPT + count, torch.float32, None)
    tokens, made = prompt, []
    for _ in range(count):
        tokens = decoder(tokens, cache)[:, -1].argmax(-1, keepdim=True)
        made.append(int(tokens))
    return made


def by_transformers(model: torch.nn.Module, prompt: torch.Tensor, count: int) -> list[int]:
    mask = torch.ones_like(prompt)
    made = model.generate(
        prompt, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return made[0, PROMPT:].tolist()


def read_rate() -> float:
    """Bytes per second at which both cores read memory, the best of several."""
    block = torch.ones(2**27)
    best = 0.0
    for _ in range(7):
        start = time.perf_counter()
        block.sum()
        best = max(best, block.numel() * 4 / (time.perf_counter() - start))
    return best


def report(name: str, config: ModelConfig, seconds: dict[str, list[float]], agree: bool) -> None:
    rate = read_rate()
    looked_up = config.context_length * config.d_model if config.positions == "learned" else 0
    read = parameter_count(config) - looked_up
    table = Table(title=f"{name}: {read / 1e6:.1f} M weights per token, {torch.get_num_threads()} threads")
    for column in ("side", "tokens/s, median", "slowest … fastest", "× transformers fp32", "of the reading limit"):
        table.add_column(column, justify="left" if column == "side" else "right")
    base = seconds["transformers, fp32"]
    for side, taken in seconds.items():
        ratio = statistics.median(b / t for b, t in zip(base, taken, strict=True))
        size = {"int8": 1, "bf16": 2}.get(side.removesuffix(" weights").split(", ")[1], 4)
        limit = rate / (size * read)
        middle = 1 / statistics.median(taken)
        table.add_row(
            side, f"{middle:,.0f}", f"{1 / max(taken):,.0f} … {1 / min(taken):,.0f}", f"{ratio:.2f}",
            f"{middle / limit:.0%}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    said = "the same tokens" if agree else "not the same tokens (ties in rounding)"
    console.print(f"reading {rate / 1e9:.1f} GB/s; limpid with fp32 and bf16 weights and transformers chose {said}")
    console.print(f"spread over rounds, standard deviation: {np.std(base) / np.mean(base):.1%} of transformers' time")


if __name__ == "__main__":
    main()
