"""Weights & Biases: on line, or kept in the run's folder for `wandb sync` (WANDB_MODE=offline)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from limpid.config import TrainConfig
from limpid.config.options import to_dict
from limpid.metrics import Sample
from limpid.run import Run

START_SECONDS = 30.0
"""How long the service may take to answer at the start."""


def start(run: Run, config: TrainConfig, identity: str) -> WeightsAndBiases:
    """The run of this id, gone on with where there is one. WANDB_PROJECT and WANDB's other variables count."""
    import wandb

    opened = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "limpid"),
        name=os.environ.get("WANDB_NAME", run.path.resolve().name),
        id=identity,
        resume="allow",
        config=to_dict(config),
        allow_val_change=True,
        dir=str(run.path),
        settings=wandb.Settings(silent=True, console="off", init_timeout=START_SECONDS),
    )
    return WeightsAndBiases(opened)


class WeightsAndBiases:
    """Metrics over `step`, a value of its own: W&B's internal counter cannot go back where steps are taken again."""

    def __init__(self, opened: Any) -> None:
        self._run = opened
        self.where = os.path.dirname(opened.dir) if opened.offline or opened.disabled else opened.url
        opened.define_metric("step", hidden=True)
        opened.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def sample(self, sample: Sample) -> None:
        import wandb

        rows = [[sample.step, sample.prompt, sample.text]]
        self._run.log({"step": sample.step, "sample": wandb.Table(columns=["step", "prompt", "text"], data=rows)})

    def finish(self) -> None:
        self._run.finish()
