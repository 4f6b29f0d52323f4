"""The step, judged: surprise, bits per byte, calibration and answers, each with how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from limpid.evaluate.evaluation import Asked


def evaluate_model(
    what: str,
    paths: Sequence[str],
    *,
    against: str | None,
    tasks: Sequence[str],
    asked: Asked,
    output: Path | None,
    as_json: bool,
    console: Console,
) -> int:
    """Evaluate, print, and draw the reliability plot into `output` (evaluate/ of a run when None).

    Raises  LimpidError for models, text or tasks that cannot be used
    """
    import json

    from rich.console import Console as Screen

    from limpid.evaluate import show
    from limpid.evaluate.evaluation import evaluate
    from limpid.progress import progress
    from limpid.training.allocator import keep_freed_memory

    keep_freed_memory()
    with progress(Screen(stderr=True)) as report:
        found = evaluate(what, paths, against=against, tasks=tasks, asked=asked, report=report)
    run = found.subjects[0].run
    folder = output if output is not None or run is None else run.path / "evaluate"
    picture = None
    if found.readings and folder is not None:
        from limpid.evaluate.plots import reliability

        picture = reliability(found.readings, folder / "reliability.png")
    if as_json:
        console.file.write(json.dumps(show.document(found), ensure_ascii=False) + "\n")
        return 0
    show.tell(found, console)
    if picture is not None:
        console.print(f"\n[bold]written[/bold]  {picture}", soft_wrap=True)
    return 0
