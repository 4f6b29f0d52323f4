"""Two variants, run over the same tokens and judged."""

from __future__ import annotations

from pathlib import Path

from jaxtyping import Int

from limpid.comparison.first_step import FirstStep, first_step
from limpid.comparison.run import run
from limpid.comparison.trl import require_counterpart
from limpid.comparison.variant import ROWS, Variant, batch_for, parse_variant
from limpid.comparison.verdict import Comparison, judge
from limpid.config.arguments import checked
from limpid.config.options import require
from limpid.maths.operation import Array
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
    step = _step_for(variants, text)
    tokens, targets = batch_for(variants, text) if step is None else _rows(step)
    observed = [run(variant, tokens, targets, backward=backward, step=step) for variant in variants]
    comparison = judge(variants[0].config, observed[0], observed[1], variants[1].config)
    reporter.close()
    return comparison


def _step_for(variants: tuple[Variant, Variant], text: str | None) -> FirstStep | None:
    """The first step of the tuned run whose loss is compared with TRL's; None where neither variant asks for it.

    Raises  ConfigError where there is no such step, or the other variant does not take it
    """
    asked = next((one for one in variants if one.path == "trl"), None)
    if asked is None:
        return None
    other = variants[0] if asked is variants[1] else variants[1]
    require(text is None, f"{asked.label} reads the rows of a step: leave out --text")
    require(asked.run is not None, f"{asked.label} is no run, and TRL's loss is that of a step: give a tuned run")
    require(
        other.path in ("plain", "fast", "compiled", "trl"),
        f"{other.label} knows no loss but that of the next token: compare {asked.label} with plain, fast or compiled",
    )
    assert asked.run is not None
    step = first_step(asked.run, ROWS)
    require_counterpart(step.objective)
    return step


def _rows(step: FirstStep) -> tuple[Int[Array, "row position"], Int[Array, "row position"]]:
    """What a reward model reads has no targets."""
    tokens = step.micro["tokens"]
    return tokens, step.micro.arrays.get("targets", tokens)
