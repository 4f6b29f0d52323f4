"""Two variants, run over the same tokens and judged."""

from __future__ import annotations

from pathlib import Path

from limpid.comparison.run import run
from limpid.comparison.variant import batch_for, parse_variant
from limpid.comparison.verdict import Comparison, judge
from limpid.config.arguments import checked
from limpid.reporter import SILENT, Reporter
from limpid.run import Run


@checked
def compare(
    first: str | Path | Run,
    second: str | Path | Run,
    *,
    text: str | None = None,
    backward: bool = True,
    reporter: Reporter = SILENT,
) -> Comparison:
    """Rounding or bug? Two variants of the same computation, quantity by quantity, within computed bounds.

    first     a model, or MODEL:WORDS for how it runs: "last:bf16", "last:transformers", as `limpid compare --help` says
    text      compare on this text instead of random tokens
    backward  compare gradients too
    Raises    ConfigError for a variant that cannot run, CheckpointError for a model that cannot be read
    """
    reporter.progress("running both variants", 0)
    variants = parse_variant(str(first)), parse_variant(str(second))
    tokens, targets = batch_for(variants, text)
    observed = [run(variant, tokens, targets, backward=backward) for variant in variants]
    comparison = judge(variants[0].config, observed[0], observed[1], variants[1].config)
    reporter.close()
    return comparison
