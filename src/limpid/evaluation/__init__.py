"""How good a model is: loss, bits per byte, calibration and answers to tasks, each with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limpid.reporter import SILENT, Reporter
from limpid.theme import HEADING

if TYPE_CHECKING:
    from limpid.evaluation.evaluation import EvaluationConfig


def evaluate_model(
    what: str,
    paths: Sequence[str],
    *,
    against: str | None,
    tasks: Sequence[str],
    config: EvaluationConfig,
    output: Path | None,
    reporter: Reporter = SILENT,
) -> int:
    """Evaluate, print, and draw the reliability plot into `output` (evaluate/ of a run when None).

    Raises  LimpidError for models, text or tasks that cannot be used
    """
    from rich.text import Text

    from limpid.evaluation.evaluation import evaluate
    from limpid.evaluation.report import document, lines
    from limpid.training.allocator import keep_freed_memory

    keep_freed_memory()
    evaluation = evaluate(what, paths, against=against, tasks=tasks, config=config, reporter=reporter)
    reporter.close()
    run = evaluation.models[0].run
    folder = output if output is not None or run is None else run.path / "evaluate"
    reporter.document(document(evaluation))
    for line in lines(evaluation):
        reporter.line(line)
    if evaluation.texts and folder is not None:
        from limpid.evaluation.plots import reliability
        from limpid.plots import left_out_where_refused

        with left_out_where_refused(output, reporter):
            picture = reliability(evaluation.texts, folder / "reliability.png")
            reporter.line(Text.assemble(("\nwritten", HEADING), f"  {picture}"))
    return 0
