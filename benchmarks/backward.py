"""One backward pass gives every derivative at about twice the forward pass's cost: measured on the reference.

Finite differences need a forward pass per parameter; their time is that of one pass, multiplied.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from limpid.config import ModelConfig
from limpid.maths import Chain
from limpid.maths.step import forward
from limpid.quantities import parameters

CONFIG = ModelConfig(vocab_size=1024, d_model=256, num_layers=4, num_heads=8, context_length=128)
ROUNDS = 7


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rng = np.random.default_rng(0)
    learned = {p.name: p.std * rng.standard_normal(p.shape) + (p.init == "ones") for p in parameters(CONFIG)}
    tokens = rng.integers(0, CONFIG.vocab_size, (4, 128))
    there, back = [], []
    for _ in range(ROUNDS):
        chain = Chain({**learned, "tokens": tokens, "targets": np.roll(tokens, -1, 1)})
        began = time.perf_counter()
        forward(chain, CONFIG)
        between = time.perf_counter()
        chain.backward("loss")
        there.append(between - began)
        back.append(time.perf_counter() - between)
    ratios = [b / f for f, b in zip(there, back, strict=True)]
    count = sum(p.size for p in parameters(CONFIG))
    once = statistics.median(there)
    print(f"forward {1e3 * once:.0f} ms, backward {1e3 * statistics.median(back):.0f} ms")
    print(f"backward / forward: {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")
    print(f"the same {count:,} derivatives by forward differences: {once * (count + 1) / 3600:.1f} hours")


if __name__ == "__main__":
    main()
