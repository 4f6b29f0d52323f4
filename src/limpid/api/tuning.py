"""Tuning from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.api.runs import train
from limpid.config import TrainConfig
from limpid.config.arguments import checked
from limpid.config.files import merged
from limpid.config.options import converted
from limpid.config.recipes import tuning
from limpid.config.tuning import ObjectiveName
from limpid.reporter import SILENT, Reporter
from limpid.run import Run

if TYPE_CHECKING:
    from limpid.training.callbacks import Callback
    from limpid.training.time_budget import Deadline


@checked
def tune(
    objective: ObjectiveName,
    model: str | Path | Run,
    data: str | Path | Sequence[str | Path],
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    reporter: Reporter = SILENT,
    deadline: Deadline | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Tune a model to records, and return the run; silent unless a reporter is given.

    objective  sft, reward, dpo, ipo, kto, grpo, ppo, distill
    model      run, RUN@STEP, Hugging Face folder or name, MODEL+ADAPTER
    data       files, folders or globs of records; `limpid tune --help` names their forms
    options    sections as plain values, which win over what suits the objective: {"update": {"learning_rate": 1e-5}}
    Raises     LimpidError for what cannot work; Diverged, Interrupted when training breaks off (everything is saved)
    """
    paths = [str(path) for path in ([data] if isinstance(data, str | Path) else data)]
    from limpid.model.weights import sizes_of
    from limpid.source import find_model

    asked = merged({"data": {"paths": paths}}, dict(options or {}))
    sizes = sizes_of(find_model(model))
    config: TrainConfig = converted(TrainConfig, tuning(objective, str(model), sizes, asked), "options")
    return train(config, name, reporter, deadline, callbacks=callbacks)
