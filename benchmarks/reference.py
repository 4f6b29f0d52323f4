"""One whole step of the reference in NumPy float64, of GPT-2-124M's shape on 1 × 128 tokens: gradients and update."""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise

import numpy as np
from generate import MODELS

from limpid.config import RunConfig, TrainConfig
from limpid.maths import Chain
from limpid.maths.step import forward, update
from limpid.maths.update import clip
from limpid.quantities import parameters
from limpid.training.allocator import keep_freed_memory

ROUNDS = 3


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    keep_freed_memory()
    config = TrainConfig(model=MODELS["124M"], run=RunConfig(max_steps=10))
    rng = np.random.default_rng(0)
    learned = {p.name: p.std * rng.standard_normal(p.shape) + (p.init == "ones") for p in parameters(config.model)}
    moments = {f"{kind}/{name}": np.zeros_like(array) for name, array in learned.items() for kind in "mv"}
    tokens = rng.integers(0, config.model.vocab_size, (1, 129))
    taken: dict[str, list[float]] = {"forward": [], "backward": [], "clip and update": []}
    for _ in range(ROUNDS + 1):
        marks = [time.perf_counter()]
        chain = Chain({**learned, "tokens": tokens[:, :-1], "targets": tokens[:, 1:]})
        forward(chain, config.model)
        marks.append(time.perf_counter())
        gradients = chain.backward("loss")
        marks.append(time.perf_counter())
        clipped, _ = clip({name: gradients[name] for name in learned}, config.update.max_grad_norm)
        update(learned, clipped, moments, config, 1e-3, 1)
        marks.append(time.perf_counter())
        for part, (start, end) in zip(taken, pairwise(marks), strict=True):
            taken[part].append(end - start)
    for part, seconds in taken.items():
        later = seconds[1:]
        print(f"{part:<16} {statistics.median(later):.1f} s (from {min(later):.1f} to {max(later):.1f})")
    whole = [sum(parts) for parts in zip(*taken.values(), strict=True)][1:]
    print(f"{'together':<16} {statistics.median(whole):.1f} s for {sum(p.size for p in learned.values()):,} parameters")


if __name__ == "__main__":
    main()
