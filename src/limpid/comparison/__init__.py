"""Two variants of the same computation, compared within computed bounds: rounding or bug?"""

from __future__ import annotations

from limpid.reporter import SILENT, Reporter


def compare_variants(
    first: str, second: str, *, text: str | None = None, backward: bool = True, reporter: Reporter = SILENT
) -> int:
    """Run both variants over the same tokens and report the verdict; 0 when rounding explains all of it, 1 when not.

    Raises  ConfigError for a variant that cannot run, CheckpointError for a model that cannot be read
    """
    from limpid.comparison.report import document, lines
    from limpid.comparison.run import run
    from limpid.comparison.variant import batch_for, parse_variant
    from limpid.comparison.verdict import judge

    reporter.progress("running both variants", 0)
    variants = parse_variant(first), parse_variant(second)
    tokens, targets = batch_for(variants, text)
    observed = [run(variant, tokens, targets, backward=backward) for variant in variants]
    comparison = judge(variants[0].config, observed[0], observed[1], variants[1].config)
    reporter.close()
    reporter.document(document(comparison))
    for line in lines(comparison):
        reporter.line(line)
    return 0 if comparison.agrees else 1
