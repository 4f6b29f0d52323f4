"""Compression: speed beside the decoder's, size beside the cross-entropy, and random round trips.

python benchmarks/compress.py [--model default|10M] [--tokens 2000] [--rounds 5] [--round-trips 0]

Speed: the same model decodes and compresses in turn, one position at a time, in one process; the ratio is what counts.
Size: of text drawn from the model itself, which it predicts as well as anything can be predicted.
"""

from __future__ import annotations

import argparse
import io
import itertools
import random
import statistics
import time
from typing import Any

import torch
from generate import MODELS
from rich.console import Console

from limpid.compression import compress_stream
from limpid.compression.coder import Compressor, Decompressor
from limpid.compression.lossless_tokenizer import LosslessTokenizer
from limpid.compression.predictor import Predictor
from limpid.config import ModelConfig, WeightFormat
from limpid.data.new_tokenizer import byte_tokenizer, character_tokenizer, train_bpe
from limpid.data.tokenizer import Tokenizer
from limpid.model import Cache, Transformer, initialise
from limpid.reporter import Reporter

TEXT = "the cat sees the old dog, and naïve birds hear über-green rivers; 日本 🙂 small stones or not\n" * 20


def decoded(predictor: Predictor, tokens: list[int]) -> float:
    """Seconds for the decoder to read these tokens, one position at a time, its context never full."""
    decoder = predictor.decoder
    began = time.perf_counter()
    with torch.inference_mode():
        for first in range(0, len(tokens), predictor.context):
            cache = Cache(decoder.config, 1, predictor.context, decoder.compute, None)
            for token in tokens[first : first + predictor.context]:
                int(decoder(torch.tensor([[token]]), cache)[0, -1].argmax())
    return time.perf_counter() - began


def sides(predictor: Predictor, tokens: list[int]) -> tuple[float, float, float]:
    """Seconds to decode, compress and decompress."""
    spelling = LosslessTokenizer(byte_tokenizer())
    first = decoded(predictor, tokens)
    predictor.reset()
    compressor = Compressor(predictor, spelling)
    compressor.tokenizer.segments = lambda content: [tokens]  # these tokens, whatever they spell
    began = time.perf_counter()
    frame = compressor.coded(b"")
    second = time.perf_counter() - began
    predictor.reset()
    decompressor = Decompressor(predictor, spelling)
    read: list[int] = []
    spelling.bytes_of = lambda found: read.extend(found) or b""
    began = time.perf_counter()
    decompressor._decoded(type(frame)(frame.kind, len(tokens), frame.check, frame.payload))
    assert read == tokens
    return first, second, time.perf_counter() - began


def drawn(model: Transformer, count: int) -> bytes:
    """Bytes that a model of bytes wrote."""
    predictor = Predictor(model, 256)
    made = bytearray()
    generator = torch.Generator().manual_seed(0)
    while len(made) < count:
        weights = torch.from_numpy(predictor.weights().copy())
        weights[256] = 0
        made.append(int(torch.multinomial(weights, 1, generator=generator)))
        predictor.append(made[-1])
    return bytes(made)


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_kv_heads": 1},
    "fast": {"qk_norm": True, "mlp": "plain", "activation": "relu2", "tied": False},
    "gpt2": {
        "norm": "layer", "positions": "learned", "mlp": "plain", "activation": "gelu_tanh",
        "attention_bias": True, "attention_output_bias": True, "mlp_bias": True,
    },
    "post": {"norm_placement": "post", "norm": "layer", "positions": "sinusoidal", "activation": "gelu"},
    "window": {"attention_window": 3, "rotary_layout": "interleaved", "activation": "relu"},
}  # fmt: skip


def content(rng: random.Random, context: int) -> bytes:
    """A little of everything, of lengths about the context's and others."""
    length = rng.choice([0, 1, 2, context - 1, context, context + 1, 3 * context + 1, rng.randrange(100)])
    match rng.randrange(6):
        case 0:
            return rng.randbytes(length)
        case 1:
            return "".join(
                chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xD800)])) for _ in range(length)
            ).encode()[:length]
        case 2:
            start = rng.randrange(len(TEXT))
            return TEXT[start : start + length].encode()[rng.randrange(3) :]
        case 3:
            return bytes([rng.randrange(256)]) * length
        case 4:
            return bytes(rng.sample(range(256), 256))[: rng.choice([256, length])]
        case _:
            return b"".join(content(rng, context) for _ in range(rng.randrange(3)))


def small(tokenizer: Tokenizer, seed: int, context: int, **sizes: Any) -> Transformer:
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=context, d_model=16, num_layers=1, num_heads=2, init_std=0.3,
        **sizes,
    )  # fmt: skip
    return initialise(Transformer(config), seed).eval()


def pairs(rng: random.Random) -> list[tuple[Predictor, LosslessTokenizer]]:
    """Models of every family and context, each with one of the tokenizers and one of the formats of weights."""
    tokenizers = [byte_tokenizer(), train_bpe([TEXT], 500), character_tokenizer("abcdefgh .é")]
    formats: list[WeightFormat] = ["fp32", "bf16", "int8"]
    made = []
    for seed, (sizes, context) in enumerate(itertools.product(FAMILIES.values(), (1, 2, 7, 32, 61))):
        tokenizer = rng.choice(tokenizers)
        width = rng.choice([16, 24, 72])
        model = small(tokenizer, seed, context, **sizes, d_ff=width)
        made.append((Predictor(model, tokenizer.end_of_text, rng.choice(formats)), LosslessTokenizer(tokenizer)))
    return made


def round_trips(count: int) -> int:
    """How many of so many random contents come back, over families, sizes, contexts, tokenizers and formats."""
    rng, good = random.Random(0), 0
    sides = pairs(rng)
    with Reporter() as reporter:
        for number in range(count):
            predictor, spelling = sides[number % len(sides)]
            contents = [content(rng, predictor.context) for _ in range(rng.randrange(1, 3))]
            predictor.reset()
            compressor = Compressor(predictor, spelling)
            frames = [compressor.coded(c) if rng.random() < 0.7 else compressor.frame(c) for c in contents]
            predictor.reset()
            decompressor = Decompressor(predictor, spelling)
            good += [decompressor.content(frame) for frame in frames] == contents
            reporter.progress("round trips", number + 1, count)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="default")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-trips", type=int, default=0)
    options = parser.parse_args()
    console = Console(highlight=False)
    config = MODELS[options.model]
    predictor = Predictor(initialise(Transformer(config), 0).to(torch.bfloat16).to(torch.float32).eval(), 0)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, config.vocab_size, (options.tokens,), generator=generator).tolist()
    sides(predictor, tokens[:100])
    taken = [sides(predictor, tokens) for _ in range(options.rounds)]
    for name, place in (("compress", 1), ("decompress", 2)):
        ratios = [one[0] / one[place] for one in taken]
        speed = options.tokens / statistics.median(one[place] for one in taken)
        console.print(
            f"{options.model}: {name} {speed:,.0f} tokens/s, {statistics.median(ratios):.2f} × the decoder's speed "
            f"({min(ratios):.2f} … {max(ratios):.2f} over {options.rounds} rounds)"
        )
    writer = small(byte_tokenizer(), 0, 128)
    text = drawn(writer, 20_000)
    found = compress_stream(writer, byte_tokenizer(), 256, io.BytesIO(text), io.BytesIO(), name="writer")
    over = (found.size - found.overhead) / (found.bits / 8) - 1
    console.print(
        f"{len(text):,} bytes drawn from a model: {found.size:,} bytes, cross-entropy {found.bits / 8:,.0f}; "
        f"coding adds {over:+.3%}, header and end {found.overhead} bytes"
    )
    if options.round_trips:
        began = time.perf_counter()
        good = round_trips(options.round_trips)
        spent = time.perf_counter() - began
        console.print(f"{good:,} of {options.round_trips:,} random contents came back, in {spent:.0f} s")


if __name__ == "__main__":
    main()
