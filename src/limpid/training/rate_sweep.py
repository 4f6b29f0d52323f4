"""The trainer of `limpid plan rate`: a new run's own model, data and update rule, with nothing kept."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from limpid.config import TrainConfig
from limpid.planning.rate import RateCurve, find_rate, require_sweep
from limpid.reporter import SILENT, Reporter
from limpid.training.mesh import open_mesh
from limpid.training.precision import arithmetic
from limpid.training.start import Training, start
from limpid.training.state import make_scaler, set_weights
from limpid.training.step import step
from limpid.training.update import make_optimizer


def rate_curve(
    config: TrainConfig,
    lowest: float,
    highest: float,
    steps: int,
    reporter: Reporter = SILENT,
) -> RateCurve:
    """The losses of a new run of this configuration along rising rates, and the largest stable one."""
    require_sweep(lowest, highest, steps)  # before anything is read
    update = dataclasses.replace(config.update, schedule="constant", warmup_steps=0, ema_decay=0.0)
    run = dataclasses.replace(config.run, max_steps=steps, record_steps=(), report_to=())
    with open_mesh() as mesh, tempfile.TemporaryDirectory() as folder:
        mesh.require_one("limpid plan rate", "start it without torchrun")
        place = str(Path(folder) / "rate")
        training = start(dataclasses.replace(config, update=update, run=run), place, reporter, mesh=mesh)
        return find_rate(FromTheStart(training), lowest, highest, steps, reporter.progress)


class FromTheStart:
    """A run that is not written down, begun again whenever asked: the same weights, the same batches."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.weights = {name: own.detach().clone() for name, own in training.state.model.named_parameters()}

    def rewind(self) -> None:
        """The initial weights, an optimizer that remembers nothing, the first batch next."""
        state, config = self.training.state, self.training.config
        set_weights(state.model, self.weights)
        state.optimizer = make_optimizer(state.model, config.update)
        state.scaler = make_scaler(arithmetic(config.run.precision), state.mesh.device)
        state.step = state.updates = 0

    def step(self, rate: float) -> float:
        """The next step at this rate; one whose gradients are not finite moves nothing, and its loss says so."""
        training = self.training
        update = dataclasses.replace(training.config.update, learning_rate=rate)
        batch = training.batches.batch(training.state.step + 1, training.state)
        return step(training.state, batch, dataclasses.replace(training.config, update=update), training.objective).loss
