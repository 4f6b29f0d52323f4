"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from limpid.config import TrainConfig
from limpid.config.options import to_dict
from limpid.metrics import Sample
from limpid.run import Run
from limpid.terminal import command


def start(run: Run, config: TrainConfig, identity: str) -> TensorBoard:
    """Event files of their own for each time that the run is started; steps taken again replace what followed."""
    return TensorBoard(run.path / "tensorboard", config, run.latest_checkpoint() + 1)


class TensorBoard:
    """Scalars, and texts of samples."""

    def __init__(self, folder: Path, config: TrainConfig, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.where = command("tensorboard", "--logdir", folder)
        self._writer = SummaryWriter(str(folder), purge_step=first if first > 1 else None)
        self._writer.add_text("config", f"```\n{json.dumps(to_dict(config), indent=1)}\n```")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def sample(self, sample: Sample) -> None:
        self._writer.add_text("sample", f"```\n{sample.prompt}{sample.text}\n```", sample.step)

    def finish(self) -> None:
        self._writer.close()
