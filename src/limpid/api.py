"""limpid from Python: the same rooms as the command line, without printing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.config import TrainConfig
from limpid.run import Run

if TYPE_CHECKING:
    from rich.console import Console

    from limpid.data.tokenizer import Tokenizer
    from limpid.model import Transformer
    from limpid.training.time_budget import StepBudget


def train(
    config: TrainConfig | None = None,
    name: str | None = None,
    console: Console | None = None,
    step_budget: StepBudget | None = None,
) -> Run:
    """Train a model to the last step and return its run; silent unless a console is given.

    With a `step_budget`, and the schedule warmup_stable_decay, the steps are as many as end on time.
    Raises  LimpidError for what cannot work; Diverged, Interrupted when training breaks off (everything is saved)
    """
    from rich.console import Console

    from limpid.diagnose import attend
    from limpid.generate import continue_text
    from limpid.training.loop import finish, loop
    from limpid.training.mesh import open_mesh
    from limpid.training.start import start

    with open_mesh() as mesh:
        shown = console if console is not None and mesh.is_main else Console(file=io.StringIO())
        training = start(config or TrainConfig(), name, shown, mesh=mesh)
        training.step_budget = step_budget
        doctor = attend(training, lambda line: shown.print(line, markup=False))
        try:
            loop(training, shown, continue_text, doctor)
        finally:
            if doctor is not None:
                doctor.close()
        finish(training)
    return training.run


def load(path: str | Path) -> tuple[Transformer, Tokenizer]:
    """Model and tokenizer of a run, or of a Hugging Face folder."""
    from limpid.data.tokenizer import load_tokenizer
    from limpid.model.weights import load_model
    from limpid.source import find_model

    source = find_model(path)
    tokenizer = load_tokenizer(source)
    return load_model(source), tokenizer


def open_step(what: str | Path, step: int | None = None, text: str | None = None) -> dict[str, Any]:
    """One step, redone in float64 and compared: the document that `limpid trace --json` prints.

    what   run, recorded step, or Hugging Face folder (with `text`)
    """
    from limpid.trace import Trace
    from limpid.trace.schema import to_json
    from limpid.training.replay import recorded

    found: dict[str, Any] = to_json(Trace.open(recorded(str(what), step, text)).document())
    return found
