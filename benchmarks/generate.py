"""Generation speed: limpid beside transformers' generate, the same weights, greedy, in turn.

python benchmarks/generate.py [--model default|10M|124M] [--batch 1] [--rounds 5] [--tokens 100] [--only limpid]
                              [--llama-cpp FOLDER]

Weights are drawn at random and rounded to bf16, as published ones mostly are: limpid then reads two bytes of each
without losing anything, and one byte when asked for int8. The limit is the time to read as many bytes as its weights
take again and again, in huge pages with all threads, measured beside that side in every round: where they fit the
caches of the processor, it is the caches' limit. The memory's limit is the time at the rate of a block that no cache
holds, measured in every round. Keys and values are read besides. The time of the prompt and the first token is taken
off.

llama.cpp reads the same weights from the GGUF files that `limpid export` writes; FOLDER holds its llama-batched-bench,
which says itself how long its tokens took without the prompt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from limpid.config import ModelConfig
from limpid.config.sampling import StoredAs
from limpid.data.new_tokenizer import byte_tokenizer
from limpid.generation import Decoder
from limpid.model import Cache, Transformer, initialise
from limpid.model.export import save_folder
from limpid.model.gguf_file import save_gguf
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
EXACT = ("limpid, fp32 weights", "limpid, bf16 weights")
"""Sides that choose the tokens of transformers in fp32."""
BEYOND_CACHES = 1 << 29
"""Bytes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="default")
    parser.add_argument("--batch", type=int, default=1, help="sequences at once")
    parser.add_argument("--only", choices=("limpid",), help="leave out transformers")
    parser.add_argument("--llama-cpp", type=Path, metavar="FOLDER", help="where llama-batched-bench lies")
    parser.add_argument("--rounds", type=int, default=5, help="generations of each side, taken in turn")
    parser.add_argument("--tokens", type=int, default=100, help="tokens per generation")
    options = parser.parse_args()
    config, count = MODELS[options.model], options.tokens
    model = initialise(Transformer(config), 0).to(torch.bfloat16).to(torch.float32).eval()
    prompt = torch.randint(0, config.vocab_size, (options.batch, PROMPT), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        sides = sides_of(model, prompt, count, Path(folder), options.only is None, options.llama_cpp)
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        limits: dict[str, list[float]] = {name: [] for name in sides}
        made, memory = {}, []
        read = weights_read(config)
        blocks = {size: torch.from_numpy(np.ones(int(size * read) // 8)) for size in set(map(bytes_of, sides))}
        beyond = torch.from_numpy(np.ones(BEYOND_CACHES // 8))
        for number in range(options.rounds + 1):
            for name, side in sides.items():
                taken, made[name] = side()
                limit = read_seconds(blocks[bytes_of(name)])
                if number:  # the first round pays for allocations
                    seconds[name].append(taken)
                    limits[name].append(limit)
            memory.append(BEYOND_CACHES / read_seconds(beyond))
    exact = [name for name in sides if made[name] and name in ("transformers, fp32", *EXACT)]
    rate = statistics.median(memory)
    same = (
        "the same tokens" if all(made[name] == made[exact[0]] for name in exact) else "not the same (ties in rounding)"
    )
    said = f"{' and '.join(exact)} chose {same}"
    report(f"{options.model}, batch {options.batch}", read, options.batch, seconds, limits, rate, said)


Side = Callable[[], tuple[float, list[int]]]
"""Seconds a token took, and the tokens, where they can be told."""


def sides_of(
    model: Transformer, prompt: torch.Tensor, count: int, folder: Path, with_transformers: bool, llama_cpp: Path | None
) -> dict[str, Side]:
    """What is measured, by name: each reads the model that `folder` is given in its own form."""
    config, sides = model.config, {}
    if with_transformers:
        save_folder(folder / "model", config, model.state_dict(), tokenizer_json=None, end_of_text=None)
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            theirs = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=dtype).eval()
            sides[f"transformers, {name}"] = timed(partial(by_transformers, theirs, prompt), count)
    forms: tuple[StoredAs, ...] = ("fp32", "bf16", "q8_0")
    for form in () if llama_cpp is None else forms:
        file = folder / f"{form}.gguf"
        tokenizer = byte_tokenizer().to_json()
        save_gguf(
            file, config, model.state_dict(), name="random", tokenizer_json=tokenizer, end_of_text=None, stored_as=form
        )
        sides[f"llama.cpp, {form} weights"] = partial(by_llama_cpp, llama_cpp, file, len(prompt), count)
    for weights in ("fp32", "bf16", "int8"):
        sides[f"limpid, {weights} weights"] = timed(partial(by_limpid, Decoder(model, weights), prompt), count)
    return sides


def timed(side: Callable[[int], list[int]], count: int) -> Side:
    """What takes the first token off the others."""

    def run() -> tuple[float, list[int]]:
        start = time.perf_counter()
        side(1)
        first = time.perf_counter()
        made = side(count)
        return ((time.perf_counter() - first) - (first - start)) / (count - 1), made

    return run


def by_llama_cpp(folder: Path, model: Path, batch: int, count: int) -> tuple[float, list[int]]:
    threads = torch.get_num_threads()
    sizes = {
        "-c": (PROMPT + count) * batch,
        "-npp": PROMPT,
        "-ntg": count,
        "-npl": batch,
        "-t": threads,
        "-tb": threads,
    }
    words = [str(word) for pair in sizes.items() for word in pair]
    command = [folder / "llama-batched-bench", "-m", model, "--output-format", "jsonl", *words]
    for _ in range(5):  # it ends at times before its one line is written
        told = subprocess.run(command, capture_output=True, text=True, check=True)
        if found := [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]:
            return found[0]["t_tg"] / count, []
    raise SystemExit(f"llama-batched-bench tells no time: {told.stderr}")


@torch.inference_mode()
def by_limpid(decoder: Decoder, prompt: torch.Tensor, count: int) -> list[int]:
    cache = Cache(decoder.config, len(prompt), PROMPT + count, torch.float32, None)
    tokens, made = prompt, []
    for _ in range(count):
        tokens = decoder(tokens, cache)[:, -1].argmax(-1, keepdim=True)
        made += tokens[:, 0].tolist()
    return made


def by_transformers(model: torch.nn.Module, prompt: torch.Tensor, count: int) -> list[int]:
    mask = torch.ones_like(prompt)
    made = model.generate(
        prompt, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return made[:, PROMPT:].T.flatten().tolist()


def weights_read(config: ModelConfig) -> int:
    """How many weights a position reads."""
    looked_up = config.context_length * config.d_model if config.positions == "learned" else 0
    return parameter_count(config) - looked_up


def bytes_of(side: str) -> float:
    """Of one weight; q8_0 has a scale of 16 bits for each 32."""
    return {"int8": 1, "q8_0": 34 / 32, "bf16": 2}.get(side.removesuffix(" weights").split(", ")[1], 4)


def read_seconds(block: torch.Tensor) -> float:
    """Time in which all threads read a block once more, the median of several."""
    taken = []
    for _ in range(max(5, int(1e9 / block.nbytes))):
        start = time.perf_counter()
        block.sum()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def report(
    title: str, read: int, batch: int, seconds: dict[str, list[float]], limits: dict[str, list[float]], rate: float,
    said: str,
) -> None:  # fmt: skip
    table = Table(title=f"{title}: {read / 1e6:.1f} M weights per position, {torch.get_num_threads()} threads")
    for column in (
        "side", "tokens/s, median", "slowest … fastest", "ratio", "read, GB/s", "of the limit", "of memory's",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column == "side" else "right")
    base = next(iter(seconds.values()))
    for side, taken in seconds.items():
        ratio = statistics.median(b / t for b, t in zip(base, taken, strict=True))
        limit = statistics.median(limits[side])
        share = statistics.median(least / t for least, t in zip(limits[side], taken, strict=True))
        table.add_row(
            side, f"{batch / statistics.median(taken):,.0f}", f"{batch / max(taken):,.0f} … {batch / min(taken):,.0f}",
            f"{ratio:.2f}", f"{bytes_of(side) * read / limit / 1e9:.0f}", f"{share:.0%}",
            f"{bytes_of(side) * read / rate / statistics.median(taken):.0%}",
        )  # fmt: skip
    console = Console(width=120)
    console.print(table)
    console.print(f"ratio: to {next(iter(seconds))}; {said}")
    console.print(f"memory is read at {rate / 1e9:.0f} GB/s")
    console.print(
        f"spread over rounds, standard deviation: {np.std(base) / np.mean(base):.1%} of the first side's time"
    )


if __name__ == "__main__":
    main()
