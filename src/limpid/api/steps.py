"""One training step, opened from Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from limpid.config.arguments import checked
from limpid.config.domain import Count
from limpid.reporter import SILENT, Reporter
from limpid.run import Run

if TYPE_CHECKING:
    from limpid.tracing import Trace


@checked
def trace(
    what: str | Path | Run = "last",
    step: Count | None = None,
    text: str | None = None,
    output: str | Path | None = None,
    reporter: Reporter = SILENT,
) -> Trace:
    """Open one step: recorded now if it was not before, redone in float64 and compared when it is asked for.

    what    run, recorded step, or Hugging Face folder (with `text`)
    step    1 is the first; the last one when left out
    text    take one step of this model on this text instead
    output  where to keep the recorded step, a .safetensors file; in the run when left out
    reporter  hears how far replaying and redoing are
    """
    from limpid.tracing import Trace
    from limpid.training.opening import recorded

    file, just_written = recorded(what, step, text, output, reporter.progress)
    return Trace.open(file, report=reporter.progress, just_written=just_written)
