"""`limpid compare`: two ways to the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config.flags import read
from limpid.errors import ConfigError


@dataclass(frozen=True)
class CompareFlags:
    """Rounding or bug? Compare two ways to the same numbers, quantity by quantity, within computed bounds.

    A way is a model, then `:` and words for how it runs. Paths: plain (every quantity formed), fast (as it trains),
    compiled, cached (one position at a time), sampler (as it generates), transformers. Precisions: fp64, fp32, fp16,
    bf16. Adapters: lora=DIR beside the weights, merged=DIR added in. processes=N shares the batch among N. So
    `limpid compare last last:transformers`, `limpid compare last:fp32 last:bf16`, `limpid compare A B`.
    """

    words: tuple[str, ...] = field(default=(), metadata={"positional": "A B"})
    """Two ways; each a run, `last` or a Hugging Face folder, with :WORDS for path and precision."""
    text: str | None = None
    """Compare on this text instead of random tokens."""
    backward: bool = True
    """Compare gradients too."""
    json: bool = False
    """Print one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("compare", CompareFlags, argv)
    if len(flags.words) != 2:
        raise ConfigError("compare takes two ways, as in: limpid compare last last:transformers")
    from rich.console import Console

    from limpid.compare import compare_ways

    first, second = flags.words
    return compare_ways(
        first, second, text=flags.text, backward=flags.backward, as_json=flags.json, console=Console(highlight=False)
    )
