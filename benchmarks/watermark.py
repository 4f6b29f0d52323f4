"""A watermark's power, false alarms and price: python -m benchmarks.watermark MODEL TEXT

Of a model's own texts, with and without a watermark: z by length, false alarms of plain texts beside what the p-value
promises, with each pair counted once and each time; and the perplexity that the model itself gives what it wrote.
"""

import argparse
import itertools
import math
from pathlib import Path

import numpy as np
import torch

from limpid.config import Sampling
from limpid.generation import Decoder, complete
from limpid.generation.watermark import detect, green_tokens
from limpid.loaded import open_model
from limpid.maths.foundations import green_z, normal_probability

KEY, GAMMA = 7_654_321, 0.25
LENGTHS = (25, 50, 100, 200)
DELTAS = (0.5, 1.0, 2.0, 4.0)
TEXTS, PLAIN = 100, 2000
LEVELS = (0.05, 0.01, 0.001)


def every_time(tokens: tuple[int, ...], vocab: int, key: int) -> float:
    """The p-value of the bell curve where each pair counts as often as it comes."""
    pairs = list(itertools.pairwise(tokens))
    green = sum(token in green_tokens(key, previous, GAMMA, vocab).tolist() for previous, token in pairs)
    return normal_probability(green_z(green, len(pairs), int(GAMMA * vocab) / vocab), math.inf)


@torch.inference_mode()
def loss(model: torch.nn.Module, tokens: tuple[int, ...]) -> float:
    """Mean surprise of what was written under the model as it is, nats per token."""
    row = torch.tensor([tokens])
    scores = model(row[:, :-1]).float().log_softmax(-1)
    return -float(scores.gather(-1, row[:, 1:, None]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    given = parser.parse_args()
    opened = open_model(given.model)
    model, tokenizer, vocab = opened.transformer, opened.tokenizer, opened.transformer.config.vocab_size
    decoder, longest = Decoder(model), min(max(LENGTHS), model.config.context_length - 1)
    lengths = [length for length in LENGTHS if length <= longest]
    print(f"{opened.title}, {vocab:,} tokens; {TEXTS} texts each; median z, share found at p < 0.001")
    print("| δ | " + " | ".join(f"{length} tokens" for length in lengths) + " | perplexity |")
    written = {}
    for delta in (0.0, *DELTAS):
        asked = {"watermark": KEY, "watermark_gamma": GAMMA, "watermark_delta": delta} if delta else {}
        sampling = Sampling(longest, 1.0, seed=1, **asked)
        made = [one.tokens for one in complete(decoder, tokenizer, [""] * TEXTS, sampling)]
        written[delta] = made = [tokens for tokens in made if len(tokens) == longest]
        cells = []
        for length in lengths:
            found = [detect(tokens[:length], vocab, KEY, GAMMA) for tokens in made]
            share = np.mean([one.p < 0.001 for one in found])
            cells.append(f"{np.median([one.z for one in found]):.1f}, {share:.0%}")
        ppl = math.exp(np.mean([loss(model, tokens) for tokens in made]))
        print(f"| {delta:g} | {' | '.join(cells)} | {ppl:.1f} |", flush=True)
    plain = _chunks(tokenizer.encode(given.text.read_text(encoding="utf-8")), longest)[:PLAIN]
    keys = np.random.default_rng(0).integers(1, 2**31, len(plain)).tolist()
    once = np.array([detect(ids, vocab, key, GAMMA).p for ids, key in zip(plain, keys, strict=True)])
    often = np.array([every_time(ids, vocab, key) for ids, key in zip(plain, keys, strict=True)])
    print(f"{len(plain):,} plain texts of {longest} tokens, a key each: share with p below")
    for level in LEVELS:
        print(f"{level:g}: {np.mean(once < level):.4f} each pair once, {np.mean(often < level):.4f} each time it comes")


def _chunks(ids: list[int], length: int) -> list[tuple[int, ...]]:
    return [tuple(ids[start : start + length]) for start in range(0, len(ids) - length, length)]


if __name__ == "__main__":
    main()
